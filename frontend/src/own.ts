/** When a page asks for what only its reader may see: their machines, their place, their connections. */

export const ASK_MS = 5_000; // between requests of a reader who takes part
export const REST_MS = 30_000; // between those of a reader who does not, as far as the page knows
export const SEEN_MS = 1_000; // after the reader's name appeared among the machines, or left

export class Own {
  private askedAt: number;
  private wasSeen: boolean | null = null;

  constructor(
    private readonly ask: () => Promise<unknown>,
    private readonly now: () => number,
    /** Whether the page shows the reader as somebody who takes part. */
    private readonly takesPart: () => boolean,
    /** Whether the feed shows a machine of the reader. */
    private readonly isSeen: () => boolean,
  ) {
    this.askedAt = now();
  }

  /** The feed has brought something. */
  look(): void {
    const isSeen = this.isSeen();
    const wait = this.wasSeen !== null && isSeen !== this.wasSeen ? SEEN_MS : this.takesPart() ? ASK_MS : REST_MS;
    if (this.now() - this.askedAt < wait) return;
    this.wasSeen = isSeen;
    this.askedAt = this.now();
    this.ask().catch(() => (this.wasSeen = !isSeen)); // again after `SEEN_MS`
  }
}
