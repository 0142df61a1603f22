import { describe, expect, it } from "vitest";

import { Mine } from "../src/place";
import type { Picture } from "../src/picture";
import { ordinal } from "../src/words";

interface Line {
  textContent: string;
}

function picture(...names: { name: string; samples: number; rank: number; now: boolean }[]): Picture {
  return { leaderboard: names } as unknown as Picture;
}

const own = (samples: number, rank: number, now = true) => ({ name: "Teo", samples, rank, now });

describe("the line of whoever trains", () => {
  it("follows the leaderboard and keeps its own words", () => {
    const line: Line = { textContent: "Your 2 machines: 4 samples, 2nd" };
    const mine = new Mine("Teo", () => line as unknown as Element);
    expect(mine.look(picture(own(1204, 1)))).toBe(true);
    expect(line.textContent).toBe("Your 2 machines: 1,204 samples, 1st");
    expect(mine.look(picture(own(1, 13)))).toBe(true);
    expect(line.textContent).toBe("Your 2 machines: 1 sample, 13th");
  });

  it("says once that it is to come, and once that it is to go", () => {
    let line: Line | null = null;
    const mine = new Mine("Teo", () => line as unknown as Element | null);
    expect(mine.look(picture(own(4, 1, false)))).toBe(true);
    expect(mine.look(picture(own(4, 1)))).toBe(false);
    expect(mine.look(picture(own(4, 1)))).toBe(true);
    line = { textContent: "Your machine: 4 samples, 1st" };
    expect(mine.look(picture(own(8, 1, false)))).toBe(false);
    expect(mine.look(picture(own(8, 1, false)))).toBe(true);
  });

  it("stays as it is for those whom the feed does not name", () => {
    const line: Line = { textContent: "Your machine: 4 samples, 14th" };
    for (const me of ["", "Ida"]) {
      const mine = new Mine(me, () => line as unknown as Element);
      expect(mine.look(picture(own(9, 1)))).toBe(true);
    }
    expect(line.textContent).toBe("Your machine: 4 samples, 14th");
  });
});

it("numbers have their ending", () => {
  expect([1, 2, 3, 4, 11, 12, 13, 21, 102, 111, 1013].map(ordinal)).toEqual([
    "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th", "1,013th",
  ]);
});
