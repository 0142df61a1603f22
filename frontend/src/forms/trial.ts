/** A prompt for a released model: sent without leaving the page, and the text is put below the form once it is written. */

const LATER_MS = 2000;

let isSending = false;

/** The part of a page that says what came of it. */
function partOf(page: ParentNode): HTMLElement | null {
  return page.querySelector<HTMLElement>("[data-trial]");
}

/** Show what an answer says; where the text is not written yet, ask for it again at the answer's address. */
async function show(answer: Response): Promise<void> {
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [fresh, shown] = [partOf(page), partOf(document)];
  if (!shown) return;
  if (!fresh) {
    shown.textContent = page.querySelector("main")?.textContent?.trim() ?? ""; // an error's page
    return;
  }
  const faults = [...page.querySelectorAll("form[data-try] .error")];
  shown.replaceChildren(...(faults.length ? faults : fresh.childNodes));
  const seconds = Number(fresh.dataset["waiting"]);
  if (seconds) ask(answer.url, seconds * 1000);
  if (location.pathname.includes("/try/")) history.replaceState(null, "", answer.url);
}

function ask(address: string, afterMs: number): void {
  setTimeout(() => void fetch(address).then(show).catch(() => ask(address, LATER_MS)), afterMs);
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || !form.matches("[data-try]") || !partOf(document)) return;
  event.preventDefault();
  if (isSending) return;
  isSending = true;
  const [chosen, prompt] = [event.submitter, form.querySelector("textarea")];
  if (chosen instanceof HTMLButtonElement && chosen.value && prompt) prompt.value = chosen.value;
  void fetch(form.action, { method: "POST", body: new FormData(form) })
    .then(show)
    .catch(() => form.submit())
    .finally(() => (isSending = false));
});

const seconds = Number(partOf(document)?.dataset["waiting"]);
if (seconds) ask(location.href, seconds * 1000);
