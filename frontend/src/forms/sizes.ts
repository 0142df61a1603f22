/** Choosing a size of model in the new-run form. */

export type Values = Readonly<Record<string, string>>;

/** The fields to fill in with the values of a chosen size: those that still have the value of the size before. */
export function refilled(said: Values, before: Values, chosen: Values): [string, string][] {
  return Object.entries(chosen).filter(([name]) => {
    const typed = said[name] ?? "";
    return typed === before[name] || (typed.trim() === "" && name !== "target_steps");
  });
}
