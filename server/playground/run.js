// One answer while it comes: its tokens, when each came, and how it ended. Draws nothing.

import { generate } from "./api.js";

/** Follows one request to its end. */
export class Run {
  constructor(request, now = () => performance.now() / 1000) {
    this.request = request;
    this.now = now;
    this.tokens = [];
    this.text = "";
    this.seed = undefined;
    this.finishReason = null;
    this.startedAt = now();
  }

  /** Takes every chunk, and tells of each. Rejects as `generate` does, or when `signal` says to stop. */
  async follow({ key, signal, onChunk }) {
    this.startedAt = this.now();
    for await (const chunk of generate(this.request.path, this.request.body, { key, signal })) {
      this.take(chunk);
      onChunk(this);
    }
  }

  take(chunk) {
    this.seed = chunk.metrics?.seed ?? this.seed;
    const [choice] = chunk.choices;
    if (!choice) return;
    const at = this.now();
    this.text += choice.text ?? choice.delta?.content ?? "";
    this.finishReason = choice.finish_reason ?? this.finishReason;
    for (const token of choice.token_provenance ?? []) this.tokens.push({ ...token, at });
  }
}
