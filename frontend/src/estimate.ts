/** The card "What it takes" follows the form. Without this it says what the form's values were when the page was made. */

import { Estimate } from "./forms/estimating";

for (const card of document.querySelectorAll<HTMLElement>("[data-estimate]")) {
  const form = card.closest("form");
  if (!form) continue;
  const { estimate: address = "", fields = "" } = card.dataset;
  const estimate = new Estimate(
    address,
    fields.split(" "),
    (name) => String(new FormData(form).get(name) ?? ""),
    (rows) => void (card.innerHTML = rows), // from this site's own template, with everything escaped
  );
  form.addEventListener("input", (event) => estimate.changed((event.target as HTMLInputElement | null)?.name ?? ""));
}
