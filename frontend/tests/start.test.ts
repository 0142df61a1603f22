import { expect, it } from "vitest";

import { leftText, localOf, utcOf } from "../src/start";

it.each([
  [14.2 * 86_400, "in 14 days"],
  [24 * 3600, "in 1 day"],
  [24 * 3600 - 1, "in 23:59:59"],
  [3600 + 62.5, "in 1:01:03"],
  [245, "in 4:05"],
  [0.2, "in 0:01"],
  [0, "now"],
  [-5, "now"],
])("%d s before the start the page says “%s”", (seconds, words) => {
  expect(leftText(seconds)).toBe(words);
});

it("shows a time where the reader is, and sends the site the same moment", () => {
  for (const utc of ["2026-12-05T18:00", "2026-07-05T23:45"]) {
    expect(new Date(localOf(utc)).getTime()).toBe(Date.parse(`${utc}Z`));
    expect(utcOf(localOf(utc))).toBe(utc);
  }
  expect([localOf(""), utcOf("")]).toEqual(["", ""]);
});
