/** How a change is applied to a picture. Pure; `platform/web/feed/changes.py` says what a change holds. */

import type { Change, Picture, RowsChange } from "./picture";

interface Row {
  readonly key: string;
}

/** The picture after a change; the given one stays as it is. */
export function apply(picture: Picture, change: Change): Picture {
  const lists = change.lists ?? {};
  return {
    ...picture,
    ...change.values,
    points: change.points
      ? [...picture.points.slice(0, change.points.from), ...change.points.add]
      : picture.points,
    bars: rowsAfter(picture.bars, lists.bars),
    leaderboard: rowsAfter(picture.leaderboard, lists.leaderboard),
    week: rowsAfter(picture.week, lists.week),
    day: rowsAfter(picture.day, lists.day),
    activity: rowsAfter(picture.activity, lists.activity),
    heldout: rowsAfter(picture.heldout, lists.heldout),
  };
}

function rowsAfter<R extends Row>(before: readonly R[], part: RowsChange<R> | undefined): readonly R[] {
  if (!part) return before;
  const rows = new Map([...before, ...(part.set ?? [])].map((row) => [row.key, row]));
  const order = part.order ?? before.map((row) => row.key);
  return order.flatMap((key) => rows.get(key) ?? []);
}
