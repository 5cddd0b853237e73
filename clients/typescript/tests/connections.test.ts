import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { InvalidRequestError, NotFoundError, Punctual, amqp, grpc, kafka, mqtt, nats, redisStream, sql } from "punctual";
import { Serve, freePort, temporary } from "./support.js";

test("a task names a statement, and operators see the connection", async () => {
  const config = join(temporary("config"), "punctual.toml");
  // Nothing listens there: tasks are accepted, and wait for the connection.
  const address = `127.0.0.1:${await freePort()}`;
  writeFileSync(config, `
    [connections.shop-db]
    kind = "postgres"
    url = "postgres://punctual@${address}/shop"
    namespaces = ["shop"]
    statements.order-paid = "update orders set state = 'paid' where id = :order_id and note = :note"

    [[sources]]
    kind = "outbox"
    connection = "shop-db"
    table = "punctual_outbox"
    namespace = "shop"
  `);
  await using broker = await Serve.start(["--config", config]);
  const p = new Punctual({ url: broker.url, namespace: "shop" });

  const to = sql("shop-db", "order-paid", { order_id: 42, note: { paid_at: "2027-01-04T08:00:00Z", at: null } });
  assert.deepEqual((await p.schedule("order-42", { in: "15m", to })).target, to);
  assert.deepEqual((await p.schedule("order-43", { in: "15m", to: sql("shop-db", "order-paid") })).target,
    { sql: { connection: "shop-db", statement: "order-paid" } });
  await assert.rejects(p.schedule("order-44", { in: "15m", to: sql("shop-db", "order-lost") }),
    (error) => error instanceof InvalidRequestError && error.field === "target.sql.statement");

  const { connections, sources } = await p.connections();
  const [connection] = connections;
  assert.ok(connection?.since instanceof Date);
  assert.deepEqual([connection.name, connection.kind, connection.state], ["shop-db", "postgres", "away"]);
  assert.deepEqual([connection.namespaces, connection.statements], [["shop"], ["order-paid"]]);
  assert.deepEqual(sources.map(({ namespace, applied, rejected }) => [namespace, applied, rejected]), [["shop", 0, 0]]);

  const tested = await p.testConnection("shop-db");
  assert.deepEqual([tested.name, tested.works], ["shop-db", false]);
  assert.ok(tested.problem);
  await assert.rejects(p.testConnection("other-db"),
    (error) => error instanceof NotFoundError && error.type === "urn:punctual:connection-not-found");
  assert.throws(() => p.testConnection(".."), RangeError);
});

test("each kind of target is sent under its name", async () => {
  await using broker = await Serve.start();
  const p = new Punctual({ url: broker.url, namespace: "shop" });
  const method = grpc("http://127.0.0.1:9", "/shop.Orders/Cancel");
  assert.deepEqual((await p.schedule("order-1", { in: "15m", to: method })).target, method);
  const headers = { "x-a": "b" };
  for (const [to, field] of [
    [kafka("events", "orders", { key: "a", headers }), "target.kafka.connection"],
    [amqp("rabbit", "orders", { routingKey: "paid", headers }), "target.amqp.connection"],
    [nats("bus", "orders.paid"), "target.nats.connection"],
    [mqtt("hall", "lamps/7", { qos: 2, retain: true }), "target.mqtt.connection"],
    [redisStream("cache", "orders", { maxlen: 1_000 }), "target.redis_stream.connection"],
  ] as const) {
    // The configuration has no connection.
    await assert.rejects(p.schedule("order-2", { in: "15m", to }),
      (error) => error instanceof InvalidRequestError && error.field === field);
  }
});
