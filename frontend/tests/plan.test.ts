/** Who is drawn to send to whom. */

import { expect, it } from "vitest";

import golden from "../../tests/golden/feed.json";
import type { Plan } from "../src/picture";
import { linked } from "../src/plan";

const plan = golden.steps[0]?.after.plan as unknown as Plan; // Amina and Teo send; a relay and Teo average

const ends = (shown: Plan) => linked(shown).map(([from, to]) => `${from.name}-${to.name}`);

it("is each to each, but nobody to itself, and whoever limits it lies on top", () => {
  expect(plan.senders.map((line) => line.limits)).toEqual([true, false]);
  expect(ends(plan)).toEqual(["Teo-relay", "Amina-relay", "Amina-Teo"]);
});

it("others are several, so they send to one another", () => {
  const others = { ...plan.averagers[0]!, key: "", name: "12 others" };
  expect(ends({ ...plan, senders: [others], averagers: [others] })).toEqual(["12 others-12 others"]);
});
