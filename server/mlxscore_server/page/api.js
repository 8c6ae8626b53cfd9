// The server's HTTP API. Its address is where this page came from.
import { askForKey, keyHeaders } from "./key.js";

export const address = (path) => new URL(path, document.baseURI.split("#")[0]).href;

/** What the server refused, in its own words: `param` names the field of the request, or is null. */
export class Refused extends Error {
  constructor(status, { message, param = null, code = null }) {
    super(message);
    this.status = status;
    this.param = param;
    this.code = code;
  }
}

/**
 * What the server answers to a GET, or to a POST of `body`, as JSON; throws Refused.
 *
 * Asks for an API key where one is needed, and waits while the model loads; `signal` ends both.
 */
export async function ask(path, { body, signal, onLoading } = {}) {
  for (;;) {
    const response = await send(path, body, signal);
    if (response.ok) return read(response);
    const error = (await read(response).catch(() => null))?.error;
    const refused = new Refused(
      response.status,
      error ?? { message: `the server answered with status ${response.status}` },
    );
    if (response.status === 401) await askForKey(refused.message, signal);
    else if (refused.code === "loading") {
      onLoading?.();
      await sleep(Number(response.headers.get("Retry-After")) || 1, signal);
    } else throw refused;
  }
}

async function send(path, body, signal) {
  const headers = keyHeaders();
  const init = { headers, signal, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(init, { method: "POST", body });
  }
  try {
    return await fetch(address(path), init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, { message: "The server does not answer. Is it still running?" });
  }
}

async function read(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(response.status, { message: "The server's answer broke off, or is no JSON." });
  }
}

function sleep(seconds, signal) {
  return new Promise((wake, refuse) => {
    const timer = setTimeout(wake, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      refuse(signal.reason);
    });
  });
}
