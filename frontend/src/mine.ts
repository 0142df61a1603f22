/** The line in place of “Join in” of those whose machine trains. The feed knows of the first few on the leaderboard. */

import type { Picture } from "./picture";
import { grouped, ordinal } from "./words";

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
      line.textContent = `${name}: ${grouped(own.samples)} ${own.samples === 1 ? "sample" : "samples"}, ${ordinal(own.rank)}`;
    }
    return isHere === wasHere;
  }
}
