/** What the drawing of a plan needs beside its lines. */

import type { Averager, Plan, PlanLine } from "./picture";

/** Both ends of every link: each to each, nobody to itself; what limits comes last and so lies on top. */
export function linked(plan: Plan): (readonly [PlanLine, Averager])[] {
  const ends = plan.senders.flatMap((from) =>
    plan.averagers.filter((to) => !from.key || from.key !== to.key).map((to) => [from, to] as const),
  );
  return ends.sort(([one], [other]) => Number(one.limits) - Number(other.limits));
}
