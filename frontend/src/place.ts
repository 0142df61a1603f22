/** The reader's own lines: below the leaderboard, and in place of “Join in” while their machine trains. */

import type { Picture } from "./picture";
import { ordinal, sayCount } from "./words";

export const ASK_MS = 5_000; // between questions at least

/** Whether the reader has given samples, as far as the page knows, and is not among the rows. */
function mayBeBelow(picture: Picture, me: string): boolean {
  return me !== "" && picture.people > picture.leaderboard.length && !picture.leaderboard.some((line) => line.name === me);
}

/** The line below the leaderboard. The feed is the same for everybody, so the page asks for this alone. */
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

/** The line of those whose machine trains. The feed knows of the first few on the leaderboard. */
export class Mine {
  private wasHere: boolean | null = null;

  constructor(
    private readonly me: string,
    private readonly line: () => Element | null,
  ) {}

  /** Keep the line up. False where it should be there and is not, or the other way round: told once. */
  look(picture: Picture): boolean {
    const own = this.me ? picture.leaderboard.find((line) => line.name === this.me && line.rank > 0) : undefined;
    const line = this.line();
    const wasHere = this.wasHere ?? line !== null;
    const isHere = own ? own.now : wasHere;
    this.wasHere = isHere;
    if (own && isHere && line) {
      const name = (line.textContent ?? "").split(":")[0];
      const rank = ordinal(own.rank);
      const given = sayCount("{number} sample, {rank}", "{number} samples, {rank}", own.samples, { rank });
      line.textContent = `${name}: ${given}`;
    }
    return isHere === wasHere;
  }
}
