/** Asks for notices and shows each once, in one of the tabs that are open. Knows no browser: all it needs is given. */

export const ASK_MS = 60_000; // between questions; browsers allow a tab in the background no more
const KNOWN = 100; // ids that are remembered, far more than a page is told of at once

export interface Notice {
  readonly id: number;
  readonly headline: string;
  readonly text: string;
  readonly path: string;
}

export interface Answer {
  /** Whether the reader wants any shown by a browser. */
  readonly wanted: boolean;
  readonly notices: readonly Notice[];
}

export interface Around {
  ask(): Promise<Answer>;
  show(notice: Notice): void;
  /** What all tabs of this browser remember; empty where nothing is, or may be. */
  read(): string;
  write(text: string): void;
  later(work: () => void, ms: number): void;
  isAllowed(): boolean;
}

/** Until the browser shows none any more, or the reader wants none. */
export async function watch(around: Around): Promise<void> {
  if (!around.isAllowed()) return;
  const answer = await around.ask().catch(() => null);
  if (answer) {
    if (!answer.wanted) return;
    const shown = known(around.read());
    const fresh = answer.notices.filter((notice) => !shown.includes(notice.id));
    if (fresh.length) around.write(JSON.stringify([...shown, ...fresh.map((notice) => notice.id)].slice(-KNOWN)));
    fresh.forEach((notice) => around.show(notice));
  }
  around.later(() => void watch(around), ASK_MS);
}

function known(text: string): number[] {
  try {
    const found: unknown = JSON.parse(text || "[]");
    return Array.isArray(found) ? found.filter((id) => typeof id === "number") : [];
  } catch {
    return [];
  }
}
