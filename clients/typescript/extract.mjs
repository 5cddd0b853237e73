// Writes the `ts` code blocks of a document to files: extract.mjs DOCUMENT FOLDER
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";

const [document, folder] = process.argv.slice(2);
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
const blocks = [...readFileSync(document, "utf8").matchAll(/```ts.*\n([\s\S]*?)```/g)];
if (blocks.length === 0) throw new Error(`${document} has no code block`);
for (const [at, block] of blocks.entries()) writeFileSync(`${folder}/example-${at + 1}.ts`, block[1]);
