/** The further charts, by the same cases as `tests/plot/test_plot.py` reads. */

import { expect, it } from "vitest";

import golden from "../../tests/golden/curve.json";
import feed from "../../tests/golden/feed.json";
import { chartKey, said, shortText, valuesOf, zeroBounds } from "../src/charts";
import type { Picture } from "../src/picture";

it.each(golden.zero_bounds.map((one) => [one.why, one] as const))("amounts: %s", (_, { values, range }) => {
  expect(zeroBounds(values)).toEqual(range.map((end) => expect.closeTo(end, 9)));
});

it("amounts are written short", () => {
  for (const { value, text } of golden.short_text) expect(shortText(value)).toBe(text);
});

it("every chart of the picture is known here, and finds its values", () => {
  const picture = feed.steps[0]?.after as unknown as Picture;
  const found = picture.charts.map(({ key }) => [key, chartKey(key), valuesOf(picture.points, chartKey(key)).at(-1)]);
  expect(found).toEqual([["speed", "speed", 30.5], ["machines", "machines", 2], ["rate", "rate", 3e-4], ["bytes", "bytes", 2048000]]);
  expect(valuesOf(picture.points, "loss")).toEqual([6, 5.25, 4.5]);
});

it("what nobody knows is the loss", () => {
  expect([chartKey(undefined), chartKey("toString"), chartKey("loss")]).toEqual(["loss", "loss", "loss"]);
});

it("a value is told with its unit", () => {
  expect(said(2048000, "bytes")).toBe("2.05 MB averaged");
  expect(said(12, "bytes")).toBe("12 B averaged");
  expect([said(1, "machines"), said(12, "machines")]).toEqual(["1 machine", "12 machines"]);
  expect(said(35.21, "speed")).toBe("35.2 samples per second");
});
