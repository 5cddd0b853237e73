package punctual

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// connectionsConfig has a database that cannot be reached: its port never listens.
const connectionsConfig = `
[connections.shop-db]
kind = "postgres"
url = "postgres://punctual@127.0.0.1:1/shop"
namespaces = ["shop"]

[connections.shop-db.statements]
order-paid = "update orders set state = 'paid' where id = :order"

[[sources]]
kind = "outbox"
connection = "shop-db"
table = "punctual_outbox"
namespace = "shop"
`

// startWithConnection starts a broker whose configuration has a connection.
func startWithConnection(t *testing.T) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "punctual.toml")
	if err := os.WriteFile(path, []byte(connectionsConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return newClient(t, startServe(t, "--config", path).url, Namespace("shop"))
}

func TestConnectionsAndSourcesAreListedAndTested(t *testing.T) {
	ctx, client := testContext(t), startWithConnection(t)
	shown := eventually(t, func() (*Connections, bool) {
		connections, err := client.Connections(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return connections, connections.Connections[0].Problem != ""
	})
	connection, source := shown.Connections[0], shown.Sources[0]
	if connection.Name != "shop-db" || connection.Kind != "postgres" || connection.State != "away" ||
		time.Since(connection.Since) > time.Minute || !reflect.DeepEqual(connection.Namespaces, []string{"shop"}) ||
		!reflect.DeepEqual(connection.Statements, []string{"order-paid"}) {
		t.Errorf("the connection is %+v", connection)
	}
	if source.Namespace != "shop" || source.ReadAt != nil || source.Applied != 0 {
		t.Errorf("the source is %+v", source)
	}
	test, err := client.TestConnection(ctx, "shop-db")
	if err != nil || test.Name != "shop-db" || test.Works || test.Problem == "" {
		t.Errorf("TestConnection gave %+v, %v", test, err)
	}
	if _, err := client.TestConnection(ctx, "other-db"); !errors.Is(err, ErrConnectionNotFound) {
		t.Errorf("TestConnection of a connection that is not configured: %v", err)
	}
}

func TestAStatementIsATarget(t *testing.T) {
	ctx, client := testContext(t), startWithConnection(t)
	params := map[string]any{"order": 42.0, "note": nil, "lines": []any{"a", true}}
	_, err := client.Schedule(ctx, "order-42", In(time.Hour), ToStatement("shop-db", "order-paid", params))
	if err != nil {
		t.Fatal(err)
	}
	task, err := client.Get(ctx, "order-42")
	if want := StatementTarget("shop-db", "order-paid", params); err != nil || !reflect.DeepEqual(*task.Target, want) {
		t.Errorf("the target is %+v, %v", task.Target, err)
	}
	task, err = client.Schedule(ctx, "order-43", In(time.Hour), ToStatement("shop-db", "order-paid", nil), JSON(map[string]int{"order": 43}))
	if err != nil || task.Target.SQL == nil || task.Target.SQL.Params != nil {
		t.Errorf("a task without params is %+v, %v", task, err)
	}
	var problem *Problem
	_, err = client.Schedule(ctx, "order-44", In(time.Hour), ToStatement("shop-db", "order-late", nil))
	if !errors.As(err, &problem) || problem.Field != "target.sql.statement" {
		t.Errorf("a statement that is not configured: %v", err)
	}
	_, err = client.Schedule(ctx, "order-45", In(time.Hour), ToStatement("shop-db", "order-paid", map[string]any{"order": func() {}}))
	var unsupported *json.UnsupportedTypeError
	if !errors.As(err, &unsupported) {
		t.Errorf("a param that is not JSON: %v", err)
	}
}

func TestEachKindOfTargetIsSentUnderItsName(t *testing.T) {
	ctx, client := testContext(t), newClient(t, startServe(t).url, Namespace("shop"))
	method := Target{GRPC: &GRPCTarget{URL: "http://127.0.0.1:9", Method: "/shop.Orders/Cancel"}}
	task, err := client.Schedule(ctx, "order-1", In(time.Hour), ToMethod("http://127.0.0.1:9", "/shop.Orders/Cancel"))
	if err != nil || !reflect.DeepEqual(*task.Target, method) {
		t.Errorf("a gRPC method gave %+v, %v", task, err)
	}
	headers, key := map[string]string{"x-a": "b"}, "a"
	for field, target := range map[string]Target{
		"kafka":        {Kafka: &KafkaTarget{Connection: "events", Topic: "orders", Key: &key, Headers: headers}},
		"amqp":         {AMQP: &AMQPTarget{Connection: "rabbit", Exchange: "orders", RoutingKey: "paid", Headers: headers}},
		"nats":         {NATS: &NATSTarget{Connection: "bus", Subject: "orders.paid"}},
		"mqtt":         {MQTT: &MQTTTarget{Connection: "hall", Topic: "lamps/7", QoS: 2, Retain: true}},
		"redis_stream": {RedisStream: &RedisStreamTarget{Connection: "cache", Stream: "orders", MaxLen: 1000}},
	} {
		// The configuration has no connection.
		_, err := client.Schedule(ctx, "order-2", In(time.Hour), To(target))
		var problem *Problem
		if !errors.As(err, &problem) || problem.Field != "target."+field+".connection" {
			t.Errorf("%s: %v", field, err)
		}
	}
}
