// Executes the code blocks of docs/sdks/typescript.md. The command `test` has written them to build/docs and compiled them.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync } from "node:fs";
import { test } from "node:test";
import { promisify } from "node:util";
import { Serve } from "./support.js";

const blocks = readdirSync("build/docs").filter((name) => name.endsWith(".js")).sort();

test("the guide has its examples", () => assert.equal(blocks.length, 6));
for (const name of blocks) {
  test(`the example ${name} of the guide runs`, { timeout: 60_000 }, async () => {
    await using broker = await Serve.start();
    const env = { ...process.env, PUNCTUAL_URL: broker.url };
    await promisify(execFile)(process.execPath, [`build/docs/${name}`], { env, timeout: 50_000 });
  });
}
