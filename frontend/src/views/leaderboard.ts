/** The leaderboard: of all time, of the week, of today. Rows glide to their new rank. */

import { type TemplateResult, html, nothing, svg } from "lit";
import { repeat } from "lit/directives/repeat.js";

import { gliding } from "./motion";
import { fill, place } from "../page";
import type { LeaderboardLine, PeriodLine, Picture } from "../picture";
import { grouped, say, sayCount } from "../words";

type Board = "all" | "week" | "day";

const BOARDS: readonly Board[] = ["all", "week", "day"];

let board: Board = boardNamed(new URLSearchParams(location.search).get("board"));
let again: () => void = () => undefined;

function boardNamed(asked: string | null): Board {
  return BOARDS.find((name) => name === asked) ?? "all";
}

export function showLeaderboard(picture: Picture, me: string, you: string): void {
  again = () => showLeaderboard(picture, me, you);
  const rows = () => place("leaderboard")?.querySelectorAll<HTMLElement>("tbody tr") ?? [];
  const shown = board === "all" ? ofAllTime(picture, me, you) : ofPeriod(picture, picture[board], me);
  gliding(rows, () => fill("leaderboard", picture.leaderboard.length ? html`${choices()}${shown}` : html`<p class="empty">${picture.nobody}</p>`));
}

function choices(): TemplateResult {
  const names: Readonly<Record<Board, string>> = { all: say("All time"), week: say("This week"), day: say("Today") };
  const link = (name: Board) =>
    html`<a href=${`?board=${name}#leaderboard`} aria-current=${name === board ? "true" : nothing} @click=${(event: Event) => choose(event, name)}>${names[name]}</a>`;
  return html`<nav class="charts" aria-label=${say("Which leaderboard")}>${BOARDS.map(link)}</nav>`;
}

function choose(event: Event, name: Board): void {
  event.preventDefault();
  board = name;
  const query = new URLSearchParams(location.search);
  query.set("board", name);
  history.replaceState(null, "", `?${query}`);
  again();
}

function ofAllTime(picture: Picture, me: string, you: string): TemplateResult {
  return html`<table>
      <thead><tr><th scope="col" class="number"><span class="hidden">${say("Rank")}</span></th><th scope="col">${say("Name")}</th>
        <th scope="col" class="number">${say("Samples")}</th><th scope="col">${say("Recent")}</th>
        ${picture.averages ? html`<th scope="col" class="number">${say("Averaged")}</th>` : nothing}
        <th scope="col" class="number lesser">${say("Steps")}</th><th scope="col" class="number lesser">${say("Machines")}</th></tr></thead>
      <tbody>${repeat(picture.leaderboard, (line) => line.key, (line) => row(line, line.name === me, picture))}</tbody>
    </table>
    ${you ? html`<p class="you">${you}</p>` : nothing}
    <p class="quiet">${picture.given}. ${full(picture)} · <a href=${`/api/v1/runs/${picture.slug}/ledger`}>${say("All contributions as JSON")}</a></p>`;
}

function ofPeriod(picture: Picture, lines: readonly PeriodLine[], me: string): TemplateResult {
  const note = board === "week"
    ? say("Recent work counts more: a sample's weight halves every week.")
    : say("Samples since midnight, UTC.");
  const table = html`<table>
      <thead><tr><th scope="col" class="number"><span class="hidden">${say("Rank")}</span></th><th scope="col">${say("Name")}</th>
        <th scope="col" class="number">${say("Samples")}</th></tr></thead>
      <tbody>${repeat(lines, (line) => line.key, (line) => html`<tr data-key=${line.key} class=${line.name === me ? "mine" : ""}>
        <td class="number quiet">${line.rank}</td><td>${line.name}${now(line.now)}</td>
        <td class="number"><eased-number .value=${line.samples}></eased-number></td></tr>`)}</tbody>
    </table>`;
  const nobody = html`<p class="empty">${board === "week" ? say("No samples in recent weeks.") : say("No samples today.")}</p>`;
  return html`${lines.length ? table : nobody}<p class="quiet">${note} ${full(picture)}</p>`;
}

function full(picture: Picture): TemplateResult {
  return html`<a href=${`/runs/${picture.slug}/leaderboard/${board === "all" ? "" : `?period=${board}`}`}>${say("Full leaderboard")}</a>`;
}

function now(isHere: boolean): TemplateResult | typeof nothing {
  return isHere ? html` <span class="now">● ${say("now")}</span>` : nothing;
}

function row(line: LeaderboardLine, isMine: boolean, picture: Picture): TemplateResult {
  return html`<tr data-key=${line.key} class=${isMine ? "mine" : ""}>
    <td class="number quiet">${line.rank || nothing}</td>
    <td>${line.name}${moved(line.moved)}${now(line.now)}</td>
    <td class="number"><eased-number .value=${line.samples}></eased-number></td>
    <td>${spark(line, picture.recent_steps)}</td>
    ${picture.averages ? html`<td class="number">${line.averaged}</td>` : nothing}
    <td class="number lesser"><eased-number .value=${line.rounds}></eased-number></td>
    <td class="number lesser">${line.machines}</td></tr>`;
}

/** How many ranks somebody has gone up or down since the day began. */
function moved(ranks: number): TemplateResult | typeof nothing {
  if (!ranks) return nothing;
  const by = Math.abs(ranks);
  const told = ranks > 0 ? say("up {ranks} since yesterday", { ranks: by }) : say("down {ranks} since yesterday", { ranks: by });
  return html` <span class="moved"><span aria-hidden="true">${ranks > 0 ? "▲" : "▼"} ${by}</span><span class="hidden">${told}</span></span>`;
}

/** Somebody's recent samples, as small bars. */
function spark(line: LeaderboardLine, steps: number): TemplateResult {
  const bars = line.heights.map((height, place) => svg`<rect x=${4 * place} width="3" height=${height} />`);
  return html`<svg class=${`spark tint-${line.tint}`} viewBox="0 -16 47 16" role="img"
    aria-label=${sayCount("{recent} in the last {number} step", "{recent} in the last {number} steps", steps, { recent: grouped(line.recent) })}><g transform="scale(1 -2)">${bars}</g></svg>`;
}
