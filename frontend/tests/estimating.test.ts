/** The card of a form: asked for once where somebody types, and never shown out of turn. */

import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { Estimate, PAUSE_MS } from "../src/forms/estimating";

let asked: string[];
let shown: string[];
let answers: ((rows: string) => void)[];
let values: Record<string, string>;

const made = () =>
  new Estimate(
    "/estimate/",
    ["objective", "width"],
    (name) => values[name] ?? "",
    (rows) => void shown.push(rows),
    (address) => (asked.push(address), new Promise((answer) => answers.push(answer))),
  );

beforeEach(() => {
  vi.useFakeTimers();
  [asked, shown, answers, values] = [[], [], [], { objective: "causal_lm", width: "64", title: "a & b" }];
});

afterEach(() => void vi.useRealTimers());

it("asks once for several keys, with the recipe's fields alone", async () => {
  const estimate = made();
  for (const width of ["1", "12", "128"]) {
    values["width"] = width;
    estimate.changed("width");
    await vi.advanceTimersByTimeAsync(PAUSE_MS - 1);
  }
  expect(asked).toEqual([]);
  await vi.advanceTimersByTimeAsync(1);
  expect(asked).toEqual(["/estimate/?objective=causal_lm&width=128"]);
});

it("asks nothing where another field changes", async () => {
  made().changed("title");
  await vi.advanceTimersByTimeAsync(2 * PAUSE_MS);
  expect(asked).toEqual([]);
});

it("drops an answer that was overtaken", async () => {
  const estimate = made();
  for (let time = 0; time < 2; time++) {
    estimate.changed("width");
    await vi.advanceTimersByTimeAsync(PAUSE_MS);
  }
  answers[1]?.("newer");
  answers[0]?.("older");
  await vi.advanceTimersByTimeAsync(0);
  expect(shown).toEqual(["newer"]);
});

it("keeps what stands there where the site does not answer", async () => {
  const estimate = new Estimate(
    "/estimate/",
    ["width"],
    () => "1",
    (rows) => void shown.push(rows),
    () => Promise.reject(new Error("503")),
  );
  estimate.changed("width");
  await vi.advanceTimersByTimeAsync(PAUSE_MS);
  expect(shown).toEqual([]);
});
