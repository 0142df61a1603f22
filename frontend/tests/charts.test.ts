/** The further charts, by the same cases as `tests/plot/test_plot.py` reads. */

import { expect, it } from "vitest";

import golden from "../../tests/golden/curve.json";
import { chartKey, said, shortText, valuesOf, zeroBounds } from "../src/charts";
import type { Point } from "../src/curve";

it.each(golden.zero_bounds.map((one) => [one.why, one] as const))("amounts: %s", (_, { values, range }) => {
  expect(zeroBounds(values)).toEqual(range.map((end) => expect.closeTo(end, 9)));
});

it("amounts are written short", () => {
  for (const { value, text } of golden.short_text) expect(shortText(value)).toBe(text);
});

it("every chart finds its values among those of a point", () => {
  const point: Point = [3, 4.5, 1_700_000_000, 30.5, 2, 3e-4, 2_048_000];
  const keys = ["speed", "machines", "rate", "bytes", "loss"] as const;
  expect(keys.map((key) => valuesOf([point], chartKey(key))[0])).toEqual([30.5, 2, 3e-4, 2_048_000, 4.5]);
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
