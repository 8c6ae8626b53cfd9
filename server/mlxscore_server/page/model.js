// The served model: its card, and the line at the top that names it.
import { ask } from "./api.js";
import { byId } from "./dom.js";

const ALTERNATIVES = 5;
const line = byId("model");

/** The card of `GET /v1/models`, once the model is loaded. */
export const card = ask("v1/models", {
  onLoading: () => {
    line.textContent = "The model is loading …";
  },
}).then(
  (answer) => {
    const [found] = answer.data;
    line.textContent = found.id;
    line.title = found.system_fingerprint;
    return found;
  },
  (error) => {
    line.textContent = error.message;
    return null;
  },
);

/** How many alternatives to ask for: as many as fit the panel, if the server gives as many. */
export async function alternatives() {
  return Math.min(ALTERNATIVES, (await card)?.max_logprobs ?? ALTERNATIVES);
}
