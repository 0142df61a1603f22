/** The charts of a run, by the rules of `peer_agent/plot.py` and `web/run_picture/charts/further.py`. Pure. */

import type { Point } from "./curve";

/** Where a point has a chart's value. */
const PLACES = { speed: 3, machines: 4, rate: 5, bytes: 6 } as const;
const SAID: Record<Amount, (text: string) => string> = {
  speed: (text) => `${text} samples per second`,
  machines: (text) => (text === "1" ? "1 machine" : `${text} machines`),
  rate: (text) => `learning rate ${text}`,
  bytes: (text) => `${text} averaged`,
};
const UNITS = ["", "k", "M", "G", "T", "P", "E"] as const; // of thousands
const MARGIN = 0.05;

export type Amount = keyof typeof PLACES;
export type ChartKey = "loss" | Amount;

/** The chart of this name; the loss for any other. */
export function chartKey(name: string | undefined): ChartKey {
  return name !== undefined && Object.hasOwn(PLACES, name) ? (name as Amount) : "loss";
}

/** What a chart shows at each point; null where that is not known. */
export function valuesOf(points: readonly Point[], key: ChartKey): (number | null)[] {
  return points.map((point) => (key === "loss" ? point[1] : (point[PLACES[key]] ?? null)));
}

/** A value in words. */
export function said(value: number, key: Amount): string {
  return SAID[key](amountText(value, key));
}

/** The range of an axis of amounts: from zero, with a margin above. */
export function zeroBounds(values: readonly (number | null)[]): [number, number] {
  const highest = values.reduce<number>((most, value) => Math.max(most, value ?? 0), 0);
  return [0, (1 + MARGIN) * highest || 1];
}

/** An amount in at most three digits: 0, 2e-4, 0.0125, 35.2, 1.53k, 12.4M. */
export function shortText(value: number): string {
  if (value === 0) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
  if (power < -3) return `${digits(value / 10 ** power)}e${power}`;
  const rounded = Number(value.toPrecision(3));
  const unit = Math.min(Math.max(Math.floor((Math.log10(Math.abs(rounded)) + 1e-9) / 3), 0), UNITS.length - 1);
  return digits(rounded / 1000 ** unit) + UNITS[unit];
}

/** The same with the unit of a chart: 12.4 MB. */
export function amountText(value: number, key: ChartKey): string {
  return key === "bytes" ? shortText(value).replace(/[kMGTPE]?$/, " $&B") : shortText(value);
}

function digits(value: number): string {
  return String(Number(value.toPrecision(3)));
}
