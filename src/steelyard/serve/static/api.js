// The JSON API. A refusal becomes an Error with the API's own sentence.

export class Refused extends Error {
  constructor(problem, status) {
    super(problem.error);
    this.at = problem.at ?? null;
    this.query = problem.query ?? null;
    this.status = status;
  }
}

const kept = new Map();
let index = null; // the identity of the index that this page is drawn from

export async function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== "" && one !== null) query.append(name, one);
  }
  const address = `/api/${path}?${query}`;
  let response;
  try {
    response = await fetch(address, { signal, headers: { accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ error: "The server does not answer: is steelyard serve still running?" }, 0);
  }
  const answered = response.headers.get("steelyard-index");
  if (answered !== null) {
    index ??= answered;
    if (answered !== index) { // the run was trained again: nothing of the new answer stands beside the old ones
      location.reload();
      return new Promise(() => {});
    }
  }
  const reply = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error; // broken off while the answer came in: no answer, and no refusal
    return { error: `The server answered ${response.status}.` };
  });
  if (!response.ok) throw new Refused(reply, response.status);
  return reply;
}

/** Write something: the token is that of the address which steelyard serve printed. */
export async function tell(path, body, token) {
  let response;
  try {
    response = await fetch(`/api/${path}`, {
      method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json", "steelyard-token": token },
    });
  } catch {
    throw new Refused({ error: "The server does not answer: is steelyard serve still running?" }, 0);
  }
  const reply = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Refused(reply, response.status);
  return reply;
}

/** The same, asked once for as long as the page is open. */
export function askOnce(path, parameters = {}) {
  const key = JSON.stringify([path, parameters]);
  if (!kept.has(key)) {
    const answer = ask(path, parameters);
    kept.set(key, answer);
    answer.catch(() => kept.delete(key));
  }
  return kept.get(key);
}

export const thumbnail = (id, size = "small") => `/api/thumbnail?${new URLSearchParams({ id, size, index })}`;
