// A value that views watch. Setting it draws every component again that uses it.

import { useLayoutEffect, useReducer } from '../vendor/preact-htm.js';

export function signal(value) {
  const readers = new Set();
  return {
    get value() {
      return value;
    },
    set value(next) {
      if (next === value) return;
      value = next;
      [...readers].forEach((read) => read(next));
    },
    subscribe(read) {
      readers.add(read);
      return () => readers.delete(read);
    },
  };
}

export function useSignal(watched) {
  const [, draw] = useReducer((n) => n + 1, 0);
  useLayoutEffect(() => watched.subscribe(draw), [watched]);
  return watched.value;
}
