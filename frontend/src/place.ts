/** The reader's own line below the leaderboard. The feed is the same for everybody, so the page asks for this alone. */

import type { Picture } from "./picture";

export const ASK_MS = 5_000; // between questions at least

/** Whether the reader has given samples, as far as the page knows, and is not among the rows. */
function mayBeBelow(picture: Picture, me: string): boolean {
  return me !== "" && picture.people > picture.leaderboard.length && !picture.leaderboard.some((line) => line.name === me);
}

export class Place {
  private step = -1;
  private askedAt = -Infinity;

  constructor(
    private readonly me: string,
    private text: string,
    private readonly ask: () => Promise<string>,
    private readonly now: () => number,
    private readonly show: () => void,
  ) {}

  /** What stands there now, as of the last answer. */
  words(picture: Picture): string {
    return mayBeBelow(picture, this.me) ? this.text : "";
  }

  /** Another picture: after another step the line may be another, too. */
  look(picture: Picture): void {
    if (!mayBeBelow(picture, this.me) || picture.step === this.step || this.now() - this.askedAt < ASK_MS) return;
    this.step = picture.step;
    this.askedAt = this.now();
    this.ask().then(
      (text) => {
        this.text = text;
        this.show();
      },
      () => (this.step = -1),
    );
  }
}
