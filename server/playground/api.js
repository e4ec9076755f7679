// The public API, as any client calls it. Knows routes, keys and errors, and nothing of the page.

import { readEvents } from "./events.js";

/** What the server answered in the place of what was asked for. */
export class ApiError extends Error {
  constructor(error, status) {
    super(error.message);
    this.name = "ApiError";
    this.type = error.type;
    this.code = error.code;
    this.param = error.param;
    this.status = status;
  }
}

/** The names of the served model, the main one first. */
export async function listModels(key) {
  const response = await call("/v1/models", { headers: headersFor(key) });
  return (await response.json()).data.map((card) => card.id);
}

/** The chunks of a streamed answer as they come. */
export async function* generate(path, body, { key, signal }) {
  const response = await call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headersFor(key) },
    body: JSON.stringify(body),
    signal,
  });
  for await (const chunk of readEvents(response.body)) {
    if (chunk.error) throw new ApiError(chunk.error);
    yield chunk;
  }
}

async function call(path, options) {
  const response = await fetch(path, options);
  if (response.ok) return response;
  const text = await response.text();
  throw new ApiError(errorIn(text) ?? { message: text || response.statusText }, response.status);
}

/** The error in a body; nothing if a proxy has answered in the server's place. */
function errorIn(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return undefined;
  }
}

function headersFor(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}
