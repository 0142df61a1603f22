/** What links carry is for a machine's owner and the organizer alone, so the page asks for it beside the feed. */

import type { Picture } from "./picture";

export const ASK_MS = 10_000; // between questions at least

export interface OwnLink {
  readonly key: string;
  readonly person: string;
  readonly machine: string;
  readonly up: string;
  /** Among the picture's `limiting` where it limits the averaging. */
  readonly up_key: string;
  readonly down: string;
  readonly down_key: string;
}

export interface OwnLinks {
  readonly title: string;
  readonly rows: readonly OwnLink[];
  readonly note: string;
  readonly more: string;
}

export class Links {
  private answer: OwnLinks | null = null;
  private asked = "";
  private askedAt = -Infinity;

  constructor(
    private readonly me: string,
    /** The page had some as it came, or is its organizer's. */
    private readonly mayHave: boolean,
    private readonly ask: () => Promise<OwnLinks>,
    private readonly now: () => number,
    private readonly show: () => void,
  ) {}

  /** As of the last answer; null before the first. */
  get known(): OwnLinks | null {
    return this.answer;
  }

  /** Another picture: after another plan links may be known better, and there may be others. */
  look(picture: Picture): void {
    const about = `${picture.planned} ${picture.training}`;
    if (!this.mayBeOf(picture) || about === this.asked || this.now() - this.askedAt < ASK_MS) return;
    this.asked = about;
    this.askedAt = this.now();
    this.ask().then(
      (links) => {
        this.answer = links;
        this.show();
      },
      () => (this.asked = ""),
    );
  }

  private mayBeOf(picture: Picture): boolean {
    return this.me !== "" && (this.mayHave || picture.bars.some((bar) => bar.name === this.me));
  }
}
