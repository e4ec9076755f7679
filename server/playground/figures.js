// What can be counted of an answer. Pure functions of its tokens; the words are those of the API.

const RECENT_SECONDS = 2;

/** The steps in which tokens came: what was drafted in each, and what of it was accepted. */
export function stepsOf(tokens) {
  const steps = [];
  for (const token of tokens) {
    if (!token.draft_position) {
      steps.push({ drafter: token.drafter, drafted: token.draft_length, accepted: 0, closing: null, at: token.at });
    }
    const step = steps.at(-1);
    if (token.origin === "accepted") step.accepted += 1;
    else step.closing = token.origin;
  }
  return steps;
}

/** Accepted tokens of drafted ones; nothing without a draft. */
export function acceptanceRate(steps) {
  const drafted = sum(steps, (step) => step.drafted);
  return drafted ? sum(steps, (step) => step.accepted) / drafted : null;
}

/** Tokens a second, from the first chunk to the last: reading the prompt is no part of it. */
export function decodingRate(tokens) {
  if (!tokens.length) return null;
  const [first, last] = [tokens[0].at, tokens.at(-1).at];
  const behind = tokens.filter((token) => token.at > first).length;
  return behind ? behind / (last - first) : null;
}

/** What happened lately, at the moment `now`. */
export function recent(items, now) {
  return items.filter((item) => item.at > now - RECENT_SECONDS);
}

/** Tokens a second of late. */
export function currentRate(tokens, now) {
  const lately = recent(tokens, now);
  return lately.length ? decodingRate(lately) : 0;
}

/** How many tokens came from where: by the drafter where a draft was right, else by the origin. */
export function countOrigins(tokens) {
  const counts = new Map();
  for (const token of tokens) {
    const name = originName(token);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return counts;
}

/** The name by which a token is coloured. */
export function originName(token) {
  return token.origin === "accepted" ? token.drafter : token.origin;
}

/** Whether two answers are the same token by token, and the first place where they are not. */
export function compareTokens(left, right) {
  const length = Math.max(left.length, right.length);
  for (let place = 0; place < length; place += 1) {
    if (left[place]?.token_id !== right[place]?.token_id) return { identical: false, place };
  }
  return { identical: true, place: null };
}

function sum(items, value) {
  return items.reduce((total, item) => total + value(item), 0);
}
