// What a user can do to tasks and dead letters. Every action asks first where it cannot be undone,
// and says what the broker answered.

import { get, post, remove } from './api.js';
import { ask } from './dialog.js';
import { kindOf } from './schedule_words.js';
import { refresh } from './session.js';
import { inZone } from './time.js';
import { say } from './ui.js';
import { count, plural } from './words.js';

const done = (text) => {
  say(text);
  refresh();
};

// What the broker answered to a cancel, in words.
function cancelWords(answer) {
  if (answer.result === 'cancelled') return 'Cancelled: it never fires.';
  if (answer.result === 'firing') {
    return `Attempt ${answer.attempt} is in flight and cannot be called back.`;
  }
  if (answer.result === 'already_fired') return `Too late: it fired at ${inZone(answer.fired_at)}.`;
  return 'Not found: it has ended already.';
}

export const cancel = (ns, name) => ask({
  title: `Cancel task ${name}?`, text: 'A cancelled task never fires again.', verb: 'Cancel task',
  danger: true,
  act: async () => done(cancelWords(await remove([ns, 'tasks', name]))),
});

export function touch(ns, task, name) {
  const isWatch = kindOf(task) === 'watch';
  return ask({
    title: `Touch ${name}`, verb: 'Touch',
    text: isWatch ? 'The watch fires when it is silent for so long from now on.'
      : 'The task fires after this time, from now on.',
    fields: [{ name: isWatch ? 'within' : 'in', label: isWatch ? 'Silent for' : 'Fire in',
      value: isWatch ? task.within : '15m', hint: 'A duration: 500ms, 15s, 15m, 48h, 30d' }],
    act: async (values) => {
      const answer = await post([ns, 'tasks', name, 'touch'], values);
      done(`Touched: due at ${inZone(answer.fire_at)}.`);
    },
  });
}

// `pause`, `resume` or `fire`.
export async function command(ns, name, verb) {
  try {
    await post([ns, 'tasks', name, verb]);
    done({ pause: 'Paused.', resume: 'Resumed.', fire: 'Fires now, once.' }[verb]);
  } catch (problem) {
    say(problem.message, 'bad');
  }
}

const VERBS = {
  cancel: { title: 'Cancel', past: 'cancelled', danger: true, text: 'They never fire again.' },
  pause: { title: 'Pause', past: 'paused', danger: true, text: 'They do not fire until resumed.' },
  resume: { title: 'Resume', past: 'resumed', danger: true, text: 'They fire again.' },
  fire: { title: 'Fire', past: 'fired', danger: true,
    text: 'Each fires now, once, in addition to its schedule.' },
  shift: { title: 'Shift', danger: true, later: 'Later by',
    text: 'Each is due so much later. Cron and interval tasks cannot be moved.' },
  spread: { title: 'Spread', danger: true, later: 'Over',
    text: 'They are due evenly over this time, from when they are due now. '
      + 'Cron and interval tasks cannot be moved.' },
};
const LATER = '10m';

// Does a verb to tasks that were selected, one call each; `cancel` is one call for all.
export function bulkSelected(ns, verb, ids) {
  const { title, past, danger, text } = VERBS[verb];
  return ask({
    title: `${title} ${plural(ids.length, 'task')}?`, text, danger, number: ids.length,
    verb: `${title} ${plural(ids.length, 'task')}`,
    act: async () => {
      if (verb === 'cancel') {
        const { results } = await post([ns, 'cancel'], { ids });
        const ended = results.filter(({ result }) => result === 'cancelled').length;
        return done(`${count(ended)} of ${count(ids.length)} cancelled.`);
      }
      const calls = ids.map((id) => post([ns, 'tasks', id, verb]));
      const failed = (await Promise.allSettled(calls)).filter((r) => r.status === 'rejected');
      done(`${count(ids.length - failed.length)} of ${count(ids.length)} ${past}.`);
      if (failed.length) throw failed[0].reason;
      return true;
    },
  });
}

// Does a verb to all tasks that match: the broker counts them first, then works in the background.
// `later` is what a dialog that moves tasks proposes.
export async function bulkMatching(ns, verb, where, later = LATER) {
  const { title, danger, text, later: label } = VERBS[verb];
  const fields = label
    ? [{ name: 'later', label, value: later, hint: 'A duration: 15s, 15m, 48h, 30d' }] : [];
  let tried;
  try {
    const moves = label ? { later } : {};
    tried = await post([ns, 'operations'], { do: verb, where, ...moves, dry_run: true });
  } catch (problem) {
    return say(problem.message, 'bad');
  }
  const number = `${tried.exact ? '' : 'at least '}${plural(tried.matched, 'task')}`;
  if (!tried.matched) return say('No task matches.');
  return ask({
    title: `${title} all that match: ${number}?`,
    text: `${text} Tasks that are created from now on are not affected.`,
    danger, number: tried.matched, verb: `${title} ${number}`, fields,
    act: async (values) =>
      (await post([ns, 'operations'], { do: verb, where, ...values })).operation,
  });
}

const scope = (chosen) => (chosen.ids ? { ids: chosen.ids }
  : chosen.where ? { where: chosen.where } : { all: true });

// Redrives or deletes dead letters: `{ids}`, `{where}` or all, and how many that are.
export function letters(ns, verb, chosen) {
  const isDelete = verb === 'delete';
  const title = isDelete ? 'Delete' : 'Redrive';
  const what = plural(chosen.number, 'dead letter');
  return ask({
    title: `${title} ${what}?`, danger: true, number: chosen.number, verb: `${title} ${what}`,
    text: isDelete ? 'They cannot be redriven afterwards. Their history is kept.'
      : 'Each is scheduled again as the same fire, with new attempts.',
    act: async () => {
      let total = 0;
      let answer;
      do {
        answer = await post([ns, 'dead', verb], scope(chosen));
        total += answer.redriven ?? answer.deleted ?? 0;
        // Letters that die again meanwhile are not redriven once more.
      } while (answer.more && total < chosen.number && (answer.redriven || answer.deleted));
      const failed = answer.problems?.length ?? 0;
      const text = `${plural(total, 'dead letter')} ${isDelete ? 'deleted' : 'redriven'}`;
      done(failed ? `${text}, ${count(failed)} not: ${answer.problems[0].detail}` : `${text}.`);
    },
  });
}

// The number of dead letters of a namespace.
export const lettersOf = async (ns, stop) => (await get([ns, 'stats'], {}, stop)).dead_letters;
