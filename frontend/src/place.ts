/** What is the reader's own: below leaderboard and bars, and in place of “Join in” while their machine trains. */

import type { Bar, Picture } from "./picture";
import { ordinal, sayCount } from "./words";

export const ASK_MS = 5_000; // between questions at least
export const GROW_MS = 10_000; // between those within a step, while bars of the reader's own grow

/** As the server says it to the reader alone: a line, empty for none, and the first of their bars. */
export interface Own {
  readonly you: string;
  readonly bars: readonly Bar[];
}

/** Whether the reader has given samples, as far as the page knows, and is not among the rows. */
function mayBeBelow(picture: Picture, me: string): boolean {
  return me !== "" && picture.people > picture.leaderboard.length && !picture.leaderboard.some((line) => line.name === me);
}

/** The picture with bars of the reader's own below those that it has for everybody; `web/run_picture/step_bars.py`. */
export function withOwn(picture: Picture, own: readonly Bar[]): Picture {
  if (!picture.target) return picture; // short steps are shown by person
  const known = new Set(picture.bars.map((bar) => bar.key));
  const below = own.filter((bar) => !known.has(bar.key));
  return { ...picture, bars: [...picture.bars, ...below].slice(0, picture.training) };
}

/** How many machines train that have no bar. */
export function machinesWithoutBar(picture: Picture): number {
  return picture.target ? picture.training - picture.bars.length : 0;
}

/** Line and bars. The feed is the same for everybody, so the page asks for these alone. */
export class Place {
  private step = -1;
  private askedAt = -Infinity;

  constructor(
    private readonly me: string,
    private own: Own,
    private readonly ask: () => Promise<Own>,
    private readonly now: () => number,
    private readonly show: () => void,
  ) {}

  /** The line, as of the last answer. */
  words(picture: Picture): string {
    return mayBeBelow(picture, this.me) ? this.own.you : "";
  }

  /** The picture with their bars, as of the last answer. */
  with(picture: Picture): Picture {
    return withOwn(picture, this.own.bars);
  }

  /** Another picture: after another step the line may be another, too; bars grow meanwhile. */
  look(picture: Picture): void {
    if (!this.me || !(mayBeBelow(picture, this.me) || machinesWithoutBar(picture))) return;
    const grows = this.with(picture).bars.length > picture.bars.length;
    const wait = picture.step !== this.step ? ASK_MS : grows ? GROW_MS : Infinity;
    if (this.now() - this.askedAt < wait) return;
    this.step = picture.step;
    this.askedAt = this.now();
    this.ask().then(
      (own) => {
        this.own = own;
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
