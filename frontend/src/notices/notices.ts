/** Notices by the browser, on every page of somebody who is logged in. */

import { offerPermission } from "./permission";
import { type Answer, type Around, type Notice, watch } from "./watching";

const SHOWN = "manyhands-notices";

const around: Around = {
  ask: async () => {
    const answer = await fetch("/account/notifications/new.json", { cache: "no-store", signal: AbortSignal.timeout(10_000) });
    if (!answer.ok) throw new Error(`${answer.status}`);
    return (await answer.json()) as Answer;
  },
  show,
  read: () => stored((store) => store.getItem(SHOWN)) ?? "",
  write: (text) => void stored((store) => store.setItem(SHOWN, text)),
  later: (work, ms) => void setTimeout(work, ms),
  isAllowed: () => "Notification" in window && Notification.permission === "granted",
};

/** A notice of the same tag replaces one that another tab has shown at the same moment. */
function show(notice: Notice): void {
  try {
    const shown = new Notification(notice.headline, { body: notice.text, tag: `manyhands-${notice.id}` });
    shown.onclick = () => {
      window.focus();
      location.assign(notice.path);
    };
  } catch {
    // A phone's browser: the settings page says so.
  }
}

/** Some browsers are told to store nothing, and throw. */
function stored<T>(use: (store: Storage) => T): T | null {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}

const place = document.querySelector<HTMLElement>("[data-notices-permission]");
if (place) offerPermission(place, () => void watch(around));
void watch(around);
