// What the API takes and answers, in camel case, with instants as `Date`. Names follow the schemas of `/openapi.json`;
// a test compares every field of the document with this file. One field per line, so that the test can read it.

import type { Duration, Instant } from "./time.js";

export type State = "scheduled" | "firing" | "paused" | "done" | "dead" | "cancelled";
export type Guarantee = "at_most_once" | "at_least_once" | "exactly_once";
export type Occasion = "due" | "manual" | "return";
export type Outcome = "acked" | "failed" | "refused" | "expired";
export type FireEnd = "done" | "dead" | "cancelled" | "replaced" | "skipped";
export type DeadReason = "exhausted" | "refused" | "expired" | "unknown";
export type Misfire = "fire_once" | "fire_all" | "skip";
export type Overlap = "allow" | "skip" | "queue_one";
export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
export type Kind = "once" | "cron" | "every" | "watch" | "recurring";
export type Labels = Record<string, string>;
/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export interface SuccessRule {
  statuses?: number[];
  json?: Record<string, unknown>;
}

export interface RefuseRule {
  statuses?: number[];
}

export interface HttpTarget {
  url: string;
  method?: Method;
  headers?: Record<string, string>;
  success?: SuccessRule;
  refuse?: RefuseRule;
}

export interface SqlTarget {
  connection: string;
  statement: string;
  params?: Record<string, unknown>;
}

export interface ToHttp {
  http: HttpTarget;
}

export interface ToQueue {
  queue: string;
}

export interface ToSql {
  sql: SqlTarget;
}

/** A record of a topic. Without a key it has the key of its task. */
export interface KafkaTarget {
  connection: string;
  topic: string;
  key?: string;
  headers?: Record<string, string>;
}

/** A message to an exchange of AMQP 0.9.1. For the default exchange, `""`, the routing key is the name of a queue. */
export interface AmqpTarget {
  connection: string;
  exchange: string;
  routingKey?: string;
  headers?: Record<string, string>;
}

/** A message to a subject of NATS JetStream. */
export interface NatsTarget {
  connection: string;
  subject: string;
}

/** A message to a topic of MQTT; `qos` is 1 unless 2 is given. */
export interface MqttTarget {
  connection: string;
  topic: string;
  qos?: 1 | 2;
  retain?: boolean;
}

/** An entry of a stream, which keeps about `maxlen` of them. */
export interface RedisStreamTarget {
  connection: string;
  stream: string;
  maxlen?: number;
}

/** A unary gRPC method, like `/shop.Orders/Cancel`. The payload is the message. */
export interface GrpcTarget {
  url: string;
  method: string;
}

export interface ToKafka {
  kafka: KafkaTarget;
}

export interface ToAmqp {
  amqp: AmqpTarget;
}

export interface ToNats {
  nats: NatsTarget;
}

export interface ToMqtt {
  mqtt: MqttTarget;
}

export interface ToRedisStream {
  redisStream: RedisStreamTarget;
}

export interface ToGrpc {
  grpc: GrpcTarget;
}

export type Target = ToHttp | ToQueue | ToSql | ToKafka | ToAmqp | ToNats | ToMqtt | ToRedisStream | ToGrpc;
/** Where deliveries go: a target that `queue`, `http`, `sql`, `kafka`, `amqp`, `nats`, `mqtt`, `redisStream` or `grpc` makes, or a URL for a `POST` to it. */
export type Receiver = Target | string | URL;

export interface Dst {
  gap?: "after" | "skip";
  overlap?: "once" | "both";
}

export interface ExponentialBackoff {
  first: Duration;
  factor?: number;
  max?: Duration;
}

export type Backoff = { fixed: Duration } | { exponential: ExponentialBackoff } | { list: Duration[] };

export interface RetryPolicy {
  attemptsMax?: number;
  backoff?: Backoff;
  jitter?: number;
}

/** A task without the rule when it is due. */
export interface TaskOptions {
  /** Where the task is delivered (`target` of the API). */
  to: Receiver;
  /** Any JSON value, or bytes, which are sent as `payload_base64`. */
  payload?: unknown;
  /** A payload in base64, instead of `payload`. */
  payloadBase64?: string;
  /** The content type of bytes. */
  contentType?: string;
  guarantee?: Guarantee;
  retry?: RetryPolicy;
  /** How long one attempt may take. For queues it is the lease. */
  timeout?: Duration;
  /** How long after its time an attempt still makes sense. */
  expiresAfter?: Duration;
  labels?: Labels;
  /** Created paused: it does not fire until it is resumed. */
  paused?: boolean;
  onDone?: Receiver;
  onDead?: Receiver;
}

export interface SeriesOptions {
  startsAt?: Instant;
  endsAt?: Instant;
  count?: number;
  misfire?: Misfire;
  overlap?: Overlap;
  jitter?: Duration;
}

export interface OnceIn {
  in: Duration;
}

export interface OnceAt {
  at: Instant;
}

export interface CronSchedule extends SeriesOptions {
  cron: string;
  timezone?: string;
  dst?: Dst;
}

export interface EverySchedule extends SeriesOptions {
  every: Duration;
}

export interface WatchSchedule {
  within: Duration;
  postponeMax?: Duration;
  onReturn?: boolean;
}

/** When a task is due: exactly one of `in`, `at`, `cron`, `every` and `within`. */
export type Schedule = OnceIn | OnceAt | CronSchedule | EverySchedule | WatchSchedule;
/** A task to create. */
export type NewTask = Schedule & TaskOptions;
/** A task to create, with or without a key. */
export type NewTaskWithKey = NewTask & { key?: string };
/** A watch to create. */
export type NewWatch = WatchSchedule & TaskOptions;

export interface RedrivenFire {
  fireId: string;
  at: Date;
}

/** A task as answered. Durations are text. */
export interface Task {
  id: string;
  namespace: string;
  key?: string | null;
  state: State;
  fireAt: Date;
  nominalAt?: Date | null;
  version: number;
  attempt: number;
  createdAt: Date;
  updatedAt: Date;
  in?: string | null;
  at?: Date | null;
  cron?: string | null;
  timezone?: string | null;
  dst?: Dst | null;
  every?: string | null;
  within?: string | null;
  postponeMax?: string | null;
  onReturn?: boolean | null;
  startsAt?: Date | null;
  endsAt?: Date | null;
  count?: number | null;
  misfire?: Misfire | null;
  overlap?: Overlap | null;
  jitter?: string | null;
  target: Target;
  payload?: unknown;
  payloadBase64?: string | null;
  contentType?: string | null;
  guarantee: Guarantee;
  retry: RetryPolicy;
  timeout: string;
  expiresAfter?: string | null;
  labels?: Labels;
  paused?: boolean | null;
  onDone?: Target | null;
  onDead?: Target | null;
  redriven?: RedrivenFire | null;
  callbackOf?: string | null;
}

/** The last task of a key, after it has ended. */
export interface EndedTask {
  id: string;
  namespace: string;
  key?: string | null;
  state: State;
  end: FireEnd;
  fireAt: Date;
  firedAt?: Date | null;
  endedAt: Date;
  attempt: number;
}

/** The short answer to a call with `minimal`. */
export interface ScheduledTask {
  id: string;
  fireAt: Date;
  version: number;
}

/** The short answer to a touch with `minimal`. */
export interface TouchedTask {
  fireAt: Date;
  version: number;
}

/** A problem document (RFC 9457). `field` is the name of the API, in snake case. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  field?: string | null;
  /** With `urn:punctual:exists`: the task that has the key. */
  existing?: Task | null;
  /** With `urn:punctual:not-ready`: why. */
  reasons?: string[] | null;
}

/** What became of a cancelled task. */
export type Cancelled =
  | { result: "cancelled" }
  | { result: "firing"; attempt: number }
  | { result: "already_fired"; firedAt: Date }
  | { result: "not_found" };

/** One result of `cancelMany`. */
export type CancelResult = (Cancelled | { result?: undefined; problem: Problem }) & { key?: string | null; id?: string | null };

export interface KeyProblem {
  key: string;
  problem: Problem;
}

export interface TouchManyAnswer {
  touched: number;
  created: number;
  missing: string[];
  problems?: KeyProblem[];
}

/** The watch that a touch rule creates, as answered. Durations are text. */
export interface WatchTemplate {
  within: string;
  postponeMax?: string | null;
  onReturn?: boolean | null;
  target: Target;
  payload?: unknown;
  payloadBase64?: string | null;
  contentType?: string | null;
  guarantee?: Guarantee | null;
  retry?: RetryPolicy | null;
  timeout?: string | null;
  expiresAfter?: string | null;
  labels?: Labels | null;
  paused?: boolean | null;
  onDone?: Target | null;
  onDead?: Target | null;
}

/** A touch of a key that begins with `prefix` and has no task creates this watch. */
export interface TouchRule {
  prefix: string;
  create: WatchTemplate;
}

export interface Answer {
  contentType?: string | null;
  text?: string | null;
  base64?: string | null;
  truncated: boolean;
}

export interface Attempt {
  attempt: number;
  at: Date;
  durationMs: number;
  outcome: Outcome;
  reason?: string | null;
  retryIn?: string | null;
  status?: number | null;
  answer?: Answer | null;
}

export interface SkippedFires {
  fires: number;
  until: Date;
  reason: "misfire" | "overlap" | "paused";
}

/** The record of a fire. */
export interface FireRecord {
  fireId: string;
  task: string;
  key?: string | null;
  occasion: Occasion;
  fireAt: Date;
  firedAt?: Date | null;
  endedAt?: Date | null;
  lagMs?: number | null;
  end?: FireEnd | null;
  reason?: DeadReason | null;
  result?: unknown;
  skipped?: SkippedFires | null;
  attempts: Attempt[];
}

export interface DeadLetter {
  fireId: string;
  reason: DeadReason;
  diedAt: Date;
  attempts: Attempt[];
  task: Task;
}

export interface DeadGroup {
  reason: string;
  target: string;
  count: number;
  firstAt: Date;
  lastAt: Date;
  example?: string | null;
}

export interface DeadGroups {
  groups: DeadGroup[];
  more: number;
}

export interface DeadGroupFilter {
  reason?: string;
  target?: string;
}

/** Which dead letters: exactly one of `ids` (fire ids), `all` and `where`. */
export interface DeadLetterSelection {
  ids?: string[];
  all?: boolean;
  where?: DeadGroupFilter;
}

export interface LetterProblem {
  id: string;
  problem: Problem;
}

export interface Redriven {
  redriven: number;
  problems: LetterProblem[];
  more: boolean;
}

export interface DeletedLetters {
  deleted: number;
  problems: LetterProblem[];
  more: boolean;
}

export interface Deleted {
  result: "deleted";
}

export interface Stats {
  namespace: string;
  accepted: number;
  scheduled: number;
  firing: number;
  paused: number;
  done: number;
  dead: number;
  cancelled: number;
  deadLetters: number;
  queued: number;
  parkedLanes: number;
  oldestOverdue?: Date | null;
  oldestOverdueMs: number;
}

export interface ForecastStep {
  from: Date;
  fires: number;
}

export interface Forecast {
  from: Date;
  step: string;
  steps: ForecastStep[];
  complete: boolean;
  completeUntil?: Date | null;
  /** With `by: "target"`: the targets with most fires. */
  targets?: TargetFires[];
}

/** The expected fires of one target, by step. */
export interface TargetFires {
  target: string;
  fires: number[];
}

export interface Lags {
  p50: number;
  p99: number;
  p999: number;
  max: number;
}

export interface SeriesPoint {
  at: Date;
  done: number;
  failed: number;
  dead: number;
  lag: number[];
  lagMs?: Lags | null;
}

export interface Series {
  from: Date;
  step: string;
  since?: Date | null;
  lagBoundsMs: number[];
  points: SeriesPoint[];
}

export interface LiveStates {
  accepted: number;
  scheduled: number;
  firing: number;
  paused: number;
  done: number;
  dead: number;
  cancelled: number;
  deadLetters: number;
}

export interface LiveRates {
  done: number;
  failed: number;
  dead: number;
}

export interface Broker {
  address: string;
  partitions: number[];
  lastHeartbeat: Date;
  /** How far its clock is ahead of the store's. Only of the brokers of a cluster. */
  clockAheadMs?: number | null;
}

export interface Topology {
  leader?: string | null;
  brokers: Broker[];
}

/** One second of `live`. The brokers are there if all namespaces were asked for. */
export interface LiveSecond extends Partial<Topology> {
  at: Date;
  counts: LiveStates;
  waiting: number;
  inFlight: number;
  oldestOverdueMs?: number | null;
  rates: LiveRates;
  lagMs?: Lags | null;
  attempts: number;
}

export interface Upcoming {
  fireAt: Date;
  local: string;
  note?: string | null;
}

export interface Preview {
  cron: string;
  timezone: string;
  timezoneData: string;
  fires: Upcoming[];
}

export interface NextFire {
  fireAt: Date;
  local: string;
  why?: string | null;
}

export interface Explanation {
  summary: string;
  waitingFor: "time" | "retry" | "worker" | "capacity" | "limit" | "pause" | "owner" | "nothing";
  details: string[];
  task: Task | EndedTask;
  partition: number;
  owner?: string | null;
  epoch?: number | null;
  touches?: number | null;
  touchedAt?: Date | null;
  next: NextFire[];
  fires: FireRecord[];
}

export interface QueueInfo {
  name: string;
  waiting: number;
  more: boolean;
  inFlight: number;
  workers: number;
  oldestOverdueMs: number;
}

/** Attempts failed in the last 15 minutes; `since` is when the last worker left, or the connection went away. */
export interface LaneInfo {
  kind: "http" | "queue" | "connection" | "mail";
  target: string;
  connection?: string | null;
  state: "ready" | "full" | "slow" | "no_workers" | "away";
  since?: Date | null;
  waiting: number;
  more: boolean;
  inFlight: number;
  capacity: number;
  oldestOverdueMs: number;
  failed: number;
  lastFailure?: LaneFailure | null;
}

/** The last failed attempt of a lane. `retryAt`: the receiver asked for a pause. */
export interface LaneFailure {
  at: Date;
  reason: string;
  retryAt?: Date | null;
}

/** If it is not complete, there are more lanes, with fewer waiting tasks. */
export interface Lanes {
  lanes: LaneInfo[];
  complete: boolean;
}

export interface WorkerInfo {
  name?: string | null;
  address?: string | null;
  broker: string;
  queues: string[];
  inFlight: number;
  credit: number;
  since: Date;
}

export interface CountedNamespace {
  name: string;
  accepted: number;
  scheduled: number;
  paused: number;
  done: number;
  dead: number;
  cancelled: number;
  deadLetters: number;
}

export interface GrantedNamespace {
  name: string;
  rights: ("read" | "produce" | "consume" | "operate")[];
}

export interface WhoAmI {
  tokens: boolean;
  admin: boolean;
  namespaces: GrantedNamespace[];
  broker: string;
  cluster?: string | null;
  store: string;
  version: string;
  time: Date;
}

/** A connection of the configuration, as the broker that answers sees it. */
export interface Connection {
  name: string;
  kind: string;
  address: string;
  state: "ready" | "away";
  since: Date;
  problem?: string | null;
  sessions: number;
  waiting: number;
  inFlight: number;
  confirmed: number;
  failed: number;
  namespaces: string[];
  allow: string[];
  statements: string[];
}

/** A source of the configuration, as the broker that answers reads it. */
export interface Source {
  name: string;
  namespace: string;
  readAt?: Date | null;
  applied: number;
  rejected: number;
  lagMs: number;
  problem?: string | null;
}

export interface Connections {
  connections: Connection[];
  sources: Source[];
}

/** Whether a connection works, and why not. */
export interface ConnectionTest {
  name: string;
  works: boolean;
  problem?: string | null;
}

export interface Ready {
  ready: boolean;
  reasons: string[];
  warnings: string[];
}

export interface FailuresCondition {
  count: number;
  window: Duration;
}

export interface FailureShareCondition {
  over: number;
  min: number;
  window: Duration;
}

export interface DeadLettersCondition {
  over: number;
}

export interface LagCondition {
  p99Over: Duration;
  window: Duration;
}

export interface OverdueCondition {
  over: Duration;
}

export interface NoWorkersCondition {
  queue: string;
  for: Duration;
}

export type AlarmCondition =
  | { failures: FailuresCondition }
  | { failureShare: FailureShareCondition }
  | { deadLetters: DeadLettersCondition }
  | { lag: LagCondition }
  | { overdue: OverdueCondition }
  | { noWorkers: NoWorkersCondition };

export interface ChatRobot {
  kind: "slack" | "dingtalk" | "feishu" | "wecom";
  url: string;
  secret?: string;
}

export interface MailReceiver {
  to: string[];
}

export type AlarmReceiver = ToHttp | { chat: ChatRobot } | { mail: MailReceiver };

export interface AlarmRule {
  when: AlarmCondition;
  to: AlarmReceiver;
  repeatAfter?: Duration | null;
}

export interface AlarmTest {
  state: "waiting" | "done" | "failed";
  reason?: string | null;
  answer?: Answer | null;
}

export interface AlarmNotice extends AlarmTest {
  at: Date;
  kind?: "raised" | "repeated" | "over" | "test" | null;
}

export interface Alarm extends AlarmRule {
  name: string;
  state: "ok" | "raised";
  since: Date;
  value: number | string | null;
  notices: number;
  lastNotice?: AlarmNotice | null;
}

/** Conditions of tasks; all that are given must hold. */
export interface TaskFilter {
  state?: State;
  kind?: Kind;
  keyPrefix?: string;
  /** One name and its value. */
  label?: Labels;
  from?: Instant;
  to?: Instant;
}

export interface FireFilter {
  end?: FireEnd;
  keyPrefix?: string;
  label?: Labels;
  from?: Instant;
  to?: Instant;
}

export type OperationVerb = "cancel" | "pause" | "resume" | "fire" | "shift" | "spread";

/** The filter of an operation, as answered. */
export interface OperationFilter {
  state?: State | null;
  kind?: Kind | null;
  keyPrefix?: string | null;
  label?: string | null;
  from?: Date | null;
  to?: Date | null;
}

export interface NewOperation {
  do: OperationVerb;
  where: TaskFilter;
  /** How much later `shift` makes each task due; `spread` by a part of it that is different for each. */
  later?: Duration;
  dryRun?: boolean;
}

export interface Operation {
  id: string;
  do: OperationVerb;
  where: OperationFilter;
  later?: string | null;
  state: "running" | "done" | "stopped" | "failed";
  matched: number;
  changed: number;
  failed: number;
  startedAt: Date;
  endedAt?: Date | null;
  by: string;
  problem?: string | null;
}

/** A call of an operator that succeeded; `call` is its name in the OpenAPI document. */
export interface Action {
  at: Date;
  call: string;
  by: string;
  name?: string;
  detail?: string;
  changed?: number | null;
}

/** What operators did, newest first; all since `since`, if all brokers have answered (`complete`). */
export interface Actions {
  actions: Action[];
  since: Date;
  complete: boolean;
}

export interface DryRun {
  matched: number;
  exact: boolean;
  sample: Task[];
}

export interface LeaseOptions {
  /** Deliveries at most: 1 to 1,000. */
  max?: number;
  wait?: Duration;
  /** How long each delivery is held. Default: the `timeout` of its task. */
  lease?: Duration;
  /** The name of the worker, as `workers` shows it. */
  worker?: string;
}

/** One attempt, leased by a worker. */
export interface Delivery<Payload = unknown> {
  token: string;
  fireId: string;
  task: string;
  key?: string | null;
  occasion: Occasion;
  attempt: number;
  version: number;
  payload: Payload;
  payloadBase64?: string | null;
  contentType?: string | null;
  fireAt: Date;
  firedAt: Date;
  lagMs: number;
  lease: string;
  callbackOf?: string | null;
}

export interface AckEntry {
  token: string;
  result?: unknown;
}

export interface AckedOne {
  token: string;
  result: "acked" | "stale" | "rejected";
  problem?: Problem | null;
}

export interface Settled {
  result: "failed" | "refused" | "extended" | "stale";
}

/** The virtual clock of `punctual dev`. */
export interface Clock {
  now: Date;
}

export interface Advanced extends Clock {
  /** How many fires were due on the way. */
  fires: number;
  /** How many of them were not settled yet when the call answered. */
  unsettled?: number;
}
