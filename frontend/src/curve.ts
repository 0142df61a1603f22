/** The columns that the chart draws, by the rules of `peer_agent/plot.py`. Pure. */

import { type ChartKey, valuesOf } from "./charts";

/** Step, nats per token, seconds of UTC; then what the further charts show, null where it is not known. */
export type Point = readonly [
  step: number, loss: number, at: number,
  samples_per_s: number | null, machines: number | null, learning_rate: number | null, bytes_averaged: number | null,
];

/** The loss of one snapshot on held-out data: step, seconds of UTC, nats per token. */
export type Measured = readonly [step: number, at: number, loss: number];

/** Of the range of losses: beyond them, and below the dotted line where it is lowest. */
const [MARGIN, MARGIN_FOR_NOTE] = [0.05, 0.15];
const LEAST_MARGIN = 0.05; // nats per token

const LEAST = 1e-3; // nats per token, of a logarithmic axis
const MOST_NATS = 20; // of a loss whose perplexity is told

export type Axis = "step" | "time";

export interface Columns {
  readonly x: number[];
  /** Of the chart, as they are and smoothed; null where one is not known. */
  readonly values: (number | null)[];
  readonly smooth: (number | null)[];
}

/** Points as columns; `weight` in [0, 1) is how much of the past stays in the smoothed values. */
export function columns(points: readonly Point[], axis: Axis, weight: number, key: ChartKey = "loss"): Columns {
  const values = valuesOf(points, key);
  return { x: points.map((point) => point[axis === "step" ? 0 : 2]), values, smooth: smoothed(values, weight) };
}

/** Held-out losses where the chart draws them. A snapshot comes in after its step and is never beyond the curve. */
export function circles(heldout: readonly Measured[], points: readonly Point[], axis: Axis): { x: number; loss: number }[] {
  const [last, , newest] = points[points.length - 1] ?? [0, 0, 0];
  const shown = heldout.filter(([step]) => step <= last);
  return shown.map(([step, at, loss]) => ({ x: axis === "step" ? step : Math.min(at, newest), loss }));
}

/** Where a label of the dotted line hides least of the curve: its right end, and its side. See `note_place` in plot.py. */
export function notePlace(
  curve: readonly (readonly [number, number])[], level: number, width: number, letter: number, [left, right, foot]: readonly [number, number, number],
): { end: number; side: "above" | "below" } {
  const sides = level + (5 / 3) * letter <= foot ? (["above", "below"] as const) : (["above"] as const);
  const places = [right, left + width, (left + right + width) / 2].flatMap((end) => sides.map((side) => ({ end, side })));
  const hidden = places.map(({ end, side }) => {
    const top = level - (side === "above" ? 2 * letter : 0);
    return curve.filter(([x, y], at) => {
      const [nextX, nextY] = curve[at + 1] ?? [x, y];
      return Math.min(x, nextX) <= end && Math.max(x, nextX) >= end - width && Math.min(y, nextY) <= top + 2 * letter && Math.max(y, nextY) > top;
    }).length;
  });
  return places[hidden.indexOf(Math.min(...hidden))] ?? { end: right, side: "above" };
}

/** The baseline of the legend: at the plot's foot, or above the dotted line and its label. See `legend_height` in plot.py. */
export function legendHeight(level: number | null, note: number | null, foot: number, letter: number): number {
  const lowest = foot - letter;
  const y = level !== null && level > lowest - (5 / 3) * letter ? level - (5 / 6) * letter : lowest;
  return note !== null && Math.abs(note - y) < (4 / 3) * letter ? note - 2 * letter : y;
}

/** The labels of the vertical axis: all with as many decimals as their step needs. */
export function levelTexts(levels: readonly number[]): string[] {
  const step = levels.length > 1 ? (levels[1] ?? 0) - (levels[0] ?? 0) : 1;
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return levels.map((level) => level.toFixed(decimals));
}

/** e to the power of a loss, in two or three digits. */
export function perplexityText(loss: number): string {
  const value = Math.exp(Math.min(loss, MOST_NATS));
  if (value < 1e3) return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
  const [part, unit] = value < 1e6 ? [value / 1e3, "k"] as const : [value / 1e6, "M"] as const;
  return part.toFixed(part < 10 ? 1 : 0) + unit;
}

/** Exponential mean, corrected for its beginning so that it starts at the first value; gaps stay gaps. */
export function smoothed(values: readonly (number | null)[], weight: number): (number | null)[] {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/**
 * The range of the vertical axis: all values and the line to beat if it is near, with a margin; as the standing chart has it.
 * A logarithmic one does not reach down to zero.
 */
export function bounds(values: readonly number[], entropy: number | null, isLog = false): [number, number] {
  let [low, high] = ends(values);
  if (entropy !== null && isWithinReach(values, entropy)) [low, high] = [Math.min(low, entropy), Math.max(high, entropy)];
  const below = entropy === low ? MARGIN_FOR_NOTE : MARGIN;
  const spread = high - low;
  const foot = Math.max(0, low - Math.max(below * spread, LEAST_MARGIN));
  return [isLog ? Math.max(foot, low / 2, LEAST) : foot, high + Math.max(MARGIN * spread, LEAST_MARGIN)];
}

function ends(values: readonly number[]): [number, number] {
  return values.reduce<[number, number]>(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

/** Whether the line to beat is so near the values that the chart can show both without flattening them. */
export function isWithinReach(values: readonly number[], entropy: number | null): boolean {
  const [low, high] = ends(values);
  return entropy !== null && Math.max(low - entropy, entropy - high) <= Math.max(high - low, LEAST_MARGIN);
}

/** The baseline of the curve's name at its last point: below or above it; null if neither is free. See `end_height` in plot.py. */
export function endHeight(
  curve: readonly (readonly [number, number])[], width: number, note: number | null, [right, foot]: readonly [number, number], letter: number,
): number | null {
  const y = curve.at(-1)?.[1] ?? 0;
  const near = curve.slice(0, -1).filter(([x]) => x >= right - width);
  const isFree = (line: number) => {
    const crosses = near.some(([, height]) => line - letter <= height && height <= line + letter / 4);
    return !crosses && line <= foot && (note === null || Math.abs(note - line) >= (4 / 3) * letter);
  };
  return [y + (4 / 3) * letter, y - (5 / 6) * letter].find(isFree) ?? null;
}
