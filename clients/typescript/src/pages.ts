// A list that is read page by page, as far as the caller iterates.

export interface Page<T> {
  items: T[];
  /** The cursor of the next page; `undefined` on the last one. */
  next: string | undefined;
}

/** All entries of a list: `for await (const task of client.list()) …`. */
export class Pages<T> implements AsyncIterable<T> {
  readonly #read: (cursor: string | undefined) => Promise<Page<T>>;

  constructor(read: (cursor: string | undefined) => Promise<Page<T>>) {
    this.#read = read;
  }

  /** One page: the first one, or the one after a cursor. */
  page(cursor?: string): Promise<Page<T>> {
    return this.#read(cursor);
  }

  /** All entries in an array of at most `max`. */
  async toArray(max = 10_000): Promise<T[]> {
    const all: T[] = [];
    for await (const entry of this) {
      all.push(entry);
      if (all.length >= max) break;
    }
    return all;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    let cursor: string | undefined;
    do {
      const page: Page<T> = await this.#read(cursor);
      yield* page.items;
      cursor = page.next;
    } while (cursor !== undefined);
  }
}
