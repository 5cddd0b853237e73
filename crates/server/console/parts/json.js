// JSON as it was sent. `JSON.parse` rounds numbers over 2^53 and drops spellings such as `1.0`, so
// values of users are cut out of the text of the answer and indented token by token.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gy;

// The end of the value that begins at `from`.
function valueEnd(text, from) {
  let depth = 0;
  TOKEN.lastIndex = from;
  for (;;) {
    while (/\s/.test(text[TOKEN.lastIndex])) TOKEN.lastIndex += 1;
    const found = TOKEN.exec(text);
    if (!found) return text.length;
    if ('{['.includes(found[0])) depth += 1;
    if ('}]'.includes(found[0])) depth -= 1;
    if (depth === 0) return TOKEN.lastIndex;
  }
}

const skip = (text, at, what) => {
  while (at < text.length && what.test(text[at])) at += 1;
  return at;
};

// The members of an object, or the entries of an array, as pairs of a name and a text.
export function members(text) {
  const found = [];
  const isObject = /^\s*\{/.test(text);
  let at = skip(text, 0, /\s/) + 1;
  for (;;) {
    at = skip(text, at, /[\s,]/);
    if (at >= text.length || '}]'.includes(text[at])) return found;
    let name = found.length;
    if (isObject) {
      const end = valueEnd(text, at);
      name = JSON.parse(text.slice(at, end));
      at = skip(text, end, /[\s:]/);
    }
    const end = valueEnd(text, at);
    found.push([name, text.slice(at, end)]);
    at = end;
  }
}

// The text of a value by its path, or `undefined`.
export function rawAt(text, path) {
  return path.reduce((value, name) => {
    if (value === undefined || !/^\s*[{[]/.test(value)) return undefined;
    return members(value).find(([given]) => given === name)?.[1];
  }, text);
}

export function indent(text) {
  const tokens = text.match(new RegExp(TOKEN.source, 'g')) ?? [];
  let depth = 0;
  let out = '';
  const line = () => `\n${'  '.repeat(depth)}`;
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === '{' || token === '[') {
      depth += 1;
      out += token;
      if (next !== '}' && next !== ']') out += line();
    } else if (token === '}' || token === ']') {
      depth -= 1;
      if (!'{['.includes(tokens[at - 1])) out += line();
      out += token;
    } else if (token === ',') out += token + line();
    else out += token === ':' ? ': ' : token;
  });
  return out;
}

// An object of pairs of names and texts.
export const objectText = (pairs) =>
  `{${pairs.map(([name, text]) => `${JSON.stringify(name)}:${text}`).join(',')}}`;
