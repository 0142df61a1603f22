/** What a run's page shows. `platform/web/run_picture/picture.py` makes it; the names are the same. */

/** Step, nats per token, seconds of UTC; then what the further charts show, null where it is not known. */
export type Point = readonly [
  step: number, loss: number, at: number,
  samples_per_s: number | null, machines: number | null, learning_rate: number | null, bytes_averaged: number | null,
];

/** A chart beside that of the loss, of which there is something to be seen. */
export interface FurtherChart {
  readonly key: string;
  readonly name: string;
  readonly summary: string;
}

export interface Bar {
  readonly key: string;
  readonly name: string;
  readonly tint: number;
  readonly state: string;
  readonly done: number;
  /** Per cent of the target batch. */
  readonly share: number;
}

export interface LeaderboardLine {
  readonly key: string;
  /** 0 of who only averages. */
  readonly rank: number;
  readonly name: string;
  readonly samples: number;
  readonly tokens: number;
  readonly rounds: number;
  readonly machines: number;
  readonly tint: number;
  readonly now: boolean;
  /** Samples in the last steps. */
  readonly recent: number;
  /** Ranks up since the day began. */
  readonly moved: number;
  /** Their parts, oldest first, from 0 to 8. */
  readonly heights: readonly number[];
  /** Bytes averaged for the others, in words; empty for none. */
  readonly averaged: string;
}

/** Somebody's row of a week or a day: samples weighed by their age. */
export interface PeriodLine {
  readonly key: string;
  readonly rank: number;
  readonly name: string;
  readonly samples: number;
  readonly now: boolean;
}

export interface ActivityLine {
  readonly key: string;
  readonly at: string;
  readonly kind: string;
  readonly text: string;
}

/** The loss of one snapshot on text that nobody trains on. */
export interface Measured {
  readonly key: string;
  readonly step: number;
  /** Seconds of UTC. */
  readonly at: number;
  /** Nats per token. */
  readonly loss: number;
}

/** Somebody, or all the others, on one side of the last plan. */
export interface PlanLine {
  /** The same on both sides for who sends and averages; empty for the others. */
  readonly key: string;
  readonly name: string;
  readonly machine: string;
  /** The middle of the line, in pixels. */
  readonly y: number;
  readonly limits: boolean;
}

export interface Averager extends PlanLine {
  /** Per cent of the model. */
  readonly share: number;
  readonly percent: string;
  /** Of the links that lead here, in pixels. */
  readonly width: number;
}

/** Who sends to whom: a link from each sender to each averager that is not itself. */
export interface Plan {
  readonly height: number;
  readonly sending: string;
  readonly averaging: string;
  readonly senders: readonly PlanLine[];
  readonly averagers: readonly Averager[];
  readonly note: string;
}

export interface Lists {
  readonly bars: readonly Bar[];
  readonly leaderboard: readonly LeaderboardLine[];
  readonly week: readonly PeriodLine[];
  readonly day: readonly PeriodLine[];
  readonly activity: readonly ActivityLine[];
  readonly heldout: readonly Measured[];
}

export interface Values {
  readonly slug: string;
  readonly state: string;
  /** The state: a class of the style sheet. */
  readonly word: string;
  /** The same for people. */
  readonly label: string;
  readonly visibility: string;
  readonly waiting_for: string;
  readonly sentence: string;
  readonly to_go: string;
  readonly progress: string;
  readonly resting: string;
  readonly others: string;
  readonly given: string;
  readonly nobody: string;
  readonly nothing: string;
  readonly without_curve: string;
  readonly can_join: boolean;
  readonly release: string;
  /** Digits; empty where nothing is released. */
  readonly released_step: string;
  readonly text: string;
  readonly step: number;
  readonly target_steps: number;
  /** In training: the median of the last steps, in nats per token. */
  readonly loss: number | null;
  readonly trend: string;
  /** Of the newest snapshot that was measured. */
  readonly heldout_loss: number | null;
  /** The step of the newest snapshot that wrote something; empty for none. */
  readonly written: string;
  readonly heldout_note: string;
  /** The same as a perplexity, in figures; empty for a model that is not judged by it. */
  readonly perplexity: string;
  readonly perplexity_note: string;
  readonly passes: string;
  /** A sentence where held-out loss rises while training loss falls. */
  readonly warning: string;
  readonly summary: string;
  readonly charts: readonly FurtherChart[];
  readonly unigram: number | null;
  readonly step_title: string;
  readonly phase: string;
  readonly done: number;
  /** 0 where several short steps are shown together. */
  readonly target: number;
  readonly samples_per_s: number;
  readonly tokens_per_s: number;
  /** What they are: tokens, images. */
  readonly units: string;
  readonly training: number;
  readonly relays: number;
  readonly void_rounds: number;
  readonly people: number;
  readonly machines: number;
  readonly samples: number;
  readonly tokens: number;
  readonly recent_steps: number;
  readonly averages: boolean;
  readonly plan: Plan | null;
  readonly limit: string;
  /** Keys of the directions that the sentence names. */
  readonly limiting: readonly string[];
  readonly planned: string;
}

export interface Picture extends Values, Lists {
  readonly points: readonly Point[];
}

export interface RowsChange<Row> {
  readonly set?: readonly Row[];
  readonly order?: readonly string[];
}

export interface Change {
  readonly values?: Partial<Values>;
  readonly points?: { readonly from: number; readonly add: readonly Point[] };
  readonly lists?: { readonly [Name in keyof Lists]?: RowsChange<Lists[Name][number]> };
}

export type Message =
  | { readonly type: "picture"; readonly seq: number; readonly run: Picture }
  | { readonly type: "change"; readonly seq: number; readonly change: Change };
