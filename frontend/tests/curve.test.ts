/** The same cases as `tests/plot/test_plot.py` reads: the curve is one in both languages. */

import { expect, it } from "vitest";

import golden from "../../tests/golden/curve.json";
import { type Measured, type Point, bounds, circles, columns, levelTexts, perplexityText, smoothed } from "../src/curve";

function point(step: number, loss: number, at: number, speed: number | null = null): Point {
  return [step, loss, at, speed, null, null, null];
}

it("smoothing begins at the first value and keeps a constant", () => {
  expect(smoothed([5, 5, 5], 0.9)).toEqual([5, 5, 5].map((value) => expect.closeTo(value)));
  expect(smoothed([8, 2, 2], 0.5)[0]).toBe(8);
  expect(smoothed([8, 2], 0)).toEqual([8, 2]);
});

it("columns follow steps or time", () => {
  const points = [point(1, 6, 1000), point(2, 5, 1010)];
  expect(columns(points, "step", 0).x).toEqual([1, 2]);
  expect(columns(points, "time", 0).x).toEqual([1000, 1010]);
});

it("a further chart has its values at the same steps, and gaps where one is not known", () => {
  const points = [point(1, 6, 1000, 8), point(2, 5, 1010), point(3, 4, 1020, 4)];
  expect(columns(points, "step", 0, "speed")).toEqual({ x: [1, 2, 3], values: [8, null, 4], smooth: [8, null, 4] });
  expect(columns(points, "step", 0.5, "speed").smooth[2]).toBeLessThan(8);
});

it.each(golden.bounds.map((one) => [one.why, one] as const))("the axis: %s", (_, { losses, unigram, range }) => {
  expect(bounds(losses, unigram)).toEqual(range.map((end) => expect.closeTo(end, 9)));
});

it("labels of one axis have equally many decimals", () => {
  for (const { levels, texts } of golden.level_texts) expect(levelTexts(levels)).toEqual(texts);
});

it("perplexities have two or three digits", () => {
  for (const { loss, text } of golden.perplexity_text) expect(perplexityText(loss)).toBe(text);
});

it("a logarithmic axis never reaches zero, and otherwise is the same", () => {
  expect(bounds([3, 5], 6, true)).toEqual(bounds([3, 5], 6));
  expect(bounds([0.01, 2], null, true)[0]).toBe(0.005);
  expect(bounds([0], null, true)[0]).toBeGreaterThan(0);
});

it("held-out losses stand at their step, or at the time their snapshot came in", () => {
  const points = [point(1, 6, 1000), point(2, 5, 1010)];
  const heldout: Measured[] = [
    [1, 1004, 6.1],
    [2, 1013, 5.2],
    [3, 1020, 5],
  ];
  expect(circles(heldout, points, "step")).toEqual([{ x: 1, loss: 6.1 }, { x: 2, loss: 5.2 }]);
  expect(circles(heldout, points, "time")).toEqual([{ x: 1004, loss: 6.1 }, { x: 1010, loss: 5.2 }]);
  expect(circles(heldout, [], "step")).toEqual([]);
});

it.each(golden.heldout.map((one) => [one.why, one] as const))("circles: %s", (_, { last, heldout, drawn }) => {
  const rows = heldout.map(([step = 0, loss = 0]): Measured => [step, step, loss]);
  expect(circles(rows, [point(1, 7, 1), point(last, 6, last)], "step")).toEqual(drawn.map(([x, loss]) => ({ x, loss })));
});
