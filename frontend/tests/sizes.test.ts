/** A chosen size fills in the recipe, but never over what somebody has typed. */

import { expect, it } from "vitest";

import { refilled } from "../src/forms/sizes";

const SMALL = { width: "64", target_steps: "" };
const LARGE = { width: "768", target_steps: "7000" };

it("replaces the values of the size before", () => {
  expect(refilled({ width: "64", target_steps: "" }, SMALL, LARGE)).toEqual([["width", "768"], ["target_steps", "7000"]]);
});

it("keeps what somebody has typed", () => {
  expect(refilled({ width: "128", target_steps: "50" }, SMALL, LARGE)).toEqual([]);
});

it("fills empty fields, except steps that follow from the data", () => {
  expect(refilled({ width: " ", target_steps: "" }, LARGE, LARGE)).toEqual([["width", "768"]]);
});
