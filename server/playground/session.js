// One press of Run: the answer with speculation, and then the same without. Knows the order, and who may stop it.

import { makeRequest, withoutSpeculation } from "./request.js";
import { Run } from "./run.js";
import { judge } from "./verdict.js";

export class Session {
  constructor(stage, conversation) {
    this.stage = stage;
    this.conversation = conversation;
    this.stopping = null;
  }

  get isRunning() {
    return this.stopping !== null;
  }

  stop() {
    this.stopping?.abort();
  }

  /** Runs what the form says against a model. Whatever goes wrong is shown. */
  async start(settings, model) {
    this.stopping = new AbortController();
    const turns = settings.route === "chat" ? this.conversation.next() : [];
    this.stage.clear({ compares: settings.compares });
    this.stage.announce("Running");
    try {
      const request = makeRequest(settings, await model(), turns);
      const drafted = await this.#follow("drafted", request, settings.key);
      if (settings.route === "chat") this.conversation.keep(settings.prompt, drafted.text);
      if (settings.compares) await this.#compare(drafted, settings.key);
      else this.stage.announce(`Done: ${drafted.tokens.length} tokens`);
    } catch (error) {
      if (this.stopping.signal.aborted) this.stage.announce("Stopped");
      else this.stage.fail(error);
    } finally {
      this.stopping = null;
    }
  }

  async #compare(drafted, key) {
    const plain = await this.#follow("plain", withoutSpeculation(drafted.request, drafted.seed), key);
    const verdict = judge(drafted, plain);
    this.stage.judge(verdict);
    this.stage.announce(`Done: ${verdict.said}, ${verdict.count}, ${verdict.speed}`);
  }

  /** Reads as fast as chunks come, and draws once a frame. */
  async #follow(which, request, key) {
    const run = new Run(request);
    let frame = 0;
    const draw = () => {
      frame = 0;
      this.stage.grow(which, run);
    };
    this.stage.begin(which);
    try {
      await run.follow({ key, signal: this.stopping.signal, onChunk: () => (frame ||= requestAnimationFrame(draw)) });
    } finally {
      cancelAnimationFrame(frame);
      this.stage.finish(which, run);
    }
    return run;
  }
}
