package punctual

import (
	"encoding/json"
	"errors"
	"time"
)

// TaskFields are the fields of a task that the caller chooses. Exactly one of In, At, Cron, Every
// and Within says when the task fires. Make one with [NewTask], or fill in the fields.
type TaskFields struct {
	Key string `json:"key,omitempty"`

	In     *Duration  `json:"in,omitempty"`
	At     *time.Time `json:"at,omitempty"`
	Cron   string     `json:"cron,omitempty"`
	Every  *Duration  `json:"every,omitempty"`
	Within *Duration  `json:"within,omitempty"`

	Timezone    string     `json:"timezone,omitempty"`
	DST         *DST       `json:"dst,omitempty"`
	StartsAt    *time.Time `json:"starts_at,omitempty"`
	EndsAt      *time.Time `json:"ends_at,omitempty"`
	Count       int        `json:"count,omitempty"`
	Misfire     string     `json:"misfire,omitempty"`
	Overlap     string     `json:"overlap,omitempty"`
	Jitter      *Duration  `json:"jitter,omitempty"`
	PostponeMax *Duration  `json:"postpone_max,omitempty"`
	OnReturn    *bool      `json:"on_return,omitempty"`

	Target        *Target         `json:"target,omitempty"`
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 []byte          `json:"payload_base64,omitempty"`
	ContentType   string          `json:"content_type,omitempty"`

	Guarantee    Guarantee         `json:"guarantee,omitempty"`
	Retry        *RetryPolicy      `json:"retry,omitempty"`
	Timeout      *Duration         `json:"timeout,omitempty"`
	ExpiresAfter *Duration         `json:"expires_after,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Paused       bool              `json:"paused,omitempty"`
	OnDone       *Target           `json:"on_done,omitempty"`
	OnDead       *Target           `json:"on_dead,omitempty"`

	// raw is the task as JSON text, instead of the fields ([TaskJSON]).
	raw json.RawMessage
	// err is what an option found wrong; the call that sends the task returns it.
	err error
}

// encode returns the JSON text of the task as it is sent.
func (f *TaskFields) encode() ([]byte, error) {
	if f.err != nil {
		return nil, f.err
	}
	if f.raw != nil {
		return f.raw, nil
	}
	return json.Marshal(f)
}

// Task is a task as a broker shows it.
type Task struct {
	TaskFields

	ID        string    `json:"id"`
	Namespace string    `json:"namespace,omitempty"`
	State     State     `json:"state,omitempty"`
	FireAt    time.Time `json:"fire_at"`
	// NominalAt is the time that the schedule gives, where jitter or a retry makes FireAt another.
	NominalAt *time.Time `json:"nominal_at,omitempty"`
	// Version counts the changes by callers. It is 0 in a task that has ended.
	Version int64 `json:"version,omitempty"`
	// Attempt counts the attempts of the present fire.
	Attempt    int           `json:"attempt"`
	CreatedAt  *time.Time    `json:"created_at,omitempty"`
	UpdatedAt  *time.Time    `json:"updated_at,omitempty"`
	Redriven   *RedrivenFire `json:"redriven,omitempty"`
	CallbackOf string        `json:"callback_of,omitempty"`

	// End, FiredAt and EndedAt say how a task has ended; End is empty while it has not.
	End     End        `json:"end,omitempty"`
	FiredAt *time.Time `json:"fired_at,omitempty"`
	EndedAt *time.Time `json:"ended_at,omitempty"`
}

// RedrivenFire is the dead letter that a task delivers again.
type RedrivenFire struct {
	FireID string    `json:"fire_id"`
	At     time.Time `json:"at"`
}

// State is the state of a task.
type State string

// The states of a task.
const (
	StateScheduled State = "scheduled"
	StateFiring    State = "firing"
	StatePaused    State = "paused"
	StateDone      State = "done"
	StateDead      State = "dead"
	StateCancelled State = "cancelled"
)

// Kind is the kind of a task's schedule.
type Kind string

// The kinds of schedules. KindRecurring is cron or every.
const (
	KindOnce      Kind = "once"
	KindCron      Kind = "cron"
	KindEvery     Kind = "every"
	KindWatch     Kind = "watch"
	KindRecurring Kind = "recurring"
)

// Guarantee says how often a fire may be received.
type Guarantee string

// The guarantees. ExactlyOnce is at least once with a stable fire id to deduplicate on.
const (
	AtLeastOnce Guarantee = "at_least_once"
	AtMostOnce  Guarantee = "at_most_once"
	ExactlyOnce Guarantee = "exactly_once"
)

// What happens to missed fires of a series, for [Misfire].
const (
	MisfireFireOnce = "fire_once"
	MisfireFireAll  = "fire_all"
	MisfireSkip     = "skip"
)

// What happens to a fire while the previous one has not ended, for [Overlap].
const (
	OverlapAllow    = "allow"
	OverlapSkip     = "skip"
	OverlapQueueOne = "queue_one"
)

// DST says what a cron expression does when the clocks change: Gap is "after" or "skip", Overlap
// is "once" or "both".
type DST struct {
	Gap     string `json:"gap,omitempty"`
	Overlap string `json:"overlap,omitempty"`
}

// Target is where deliveries are sent: a webhook, a queue, a gRPC method, or a statement, topic,
// exchange, subject or stream of a connection. Exactly one field is set.
type Target struct {
	HTTP        *HTTPTarget        `json:"http,omitempty"`
	Queue       string             `json:"queue,omitempty"`
	SQL         *SQLTarget         `json:"sql,omitempty"`
	Kafka       *KafkaTarget       `json:"kafka,omitempty"`
	AMQP        *AMQPTarget        `json:"amqp,omitempty"`
	NATS        *NATSTarget        `json:"nats,omitempty"`
	MQTT        *MQTTTarget        `json:"mqtt,omitempty"`
	RedisStream *RedisStreamTarget `json:"redis_stream,omitempty"`
	GRPC        *GRPCTarget        `json:"grpc,omitempty"`
}

// QueueTarget is the target of a queue.
func QueueTarget(name string) Target { return Target{Queue: name} }

// URLTarget is the target of a webhook.
func URLTarget(url string) Target { return Target{HTTP: &HTTPTarget{URL: url}} }

// StatementTarget is the target of a statement. The params may be nil.
func StatementTarget(connection, statement string, params map[string]any) Target {
	return Target{SQL: &SQLTarget{Connection: connection, Statement: statement, Params: params}}
}

// HTTPTarget is a webhook. The method is POST unless another one is given.
type HTTPTarget struct {
	URL     string            `json:"url"`
	Method  string            `json:"method,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Success *SuccessRule      `json:"success,omitempty"`
	Refuse  *RefuseRule       `json:"refuse,omitempty"`
}

// SQLTarget is a statement that the configuration of the broker has, on a connection of it.
type SQLTarget struct {
	Connection string `json:"connection"`
	Statement  string `json:"statement"`
	// Params has values of parameters; those that are missing are taken from the payload.
	Params map[string]any `json:"params,omitempty"`
}

// KafkaTarget is a topic.
type KafkaTarget struct {
	Connection string `json:"connection"`
	Topic      string `json:"topic"`
	// Key is the key of the record. It is the key of the task if it is nil.
	Key     *string           `json:"key,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// AMQPTarget is an exchange of AMQP 0.9.1. For the default exchange, which is empty, the routing key
// is the name of a queue.
type AMQPTarget struct {
	Connection string            `json:"connection"`
	Exchange   string            `json:"exchange"`
	RoutingKey string            `json:"routing_key,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"`
}

// NATSTarget is a subject of NATS JetStream.
type NATSTarget struct {
	Connection string `json:"connection"`
	Subject    string `json:"subject"`
}

// MQTTTarget is a topic of MQTT. QoS is 1 unless 2 is given.
type MQTTTarget struct {
	Connection string `json:"connection"`
	Topic      string `json:"topic"`
	QoS        int    `json:"qos,omitempty"`
	Retain     bool   `json:"retain,omitempty"`
}

// RedisStreamTarget is a stream of Redis, which keeps about MaxLen entries; all if that is zero.
type RedisStreamTarget struct {
	Connection string `json:"connection"`
	Stream     string `json:"stream"`
	MaxLen     int64  `json:"maxlen,omitempty"`
}

// GRPCTarget is a unary method, like /shop.Orders/Cancel. The payload is the message.
type GRPCTarget struct {
	URL    string `json:"url"`
	Method string `json:"method"`
}

// SuccessRule says which answers are a success. All that is given must hold.
type SuccessRule struct {
	Statuses []int `json:"statuses,omitempty"`
	// JSON has values that the body must have, by JSON pointer.
	JSON map[string]any `json:"json,omitempty"`
}

// RefuseRule says which statuses refuse, in addition to 410.
type RefuseRule struct {
	Statuses []int `json:"statuses,omitempty"`
}

// RetryPolicy says how often and after which pauses a failed attempt is repeated.
type RetryPolicy struct {
	AttemptsMax int      `json:"attempts_max,omitempty"`
	Backoff     *Backoff `json:"backoff,omitempty"`
	// Jitter is the share of each pause that is random, from 0 to 1. The default is 0.1.
	Jitter *float64 `json:"jitter,omitempty"`
}

// Backoff has the pauses between attempts; exactly one field is set.
type Backoff struct {
	Fixed       *Duration           `json:"fixed,omitempty"`
	Exponential *ExponentialBackoff `json:"exponential,omitempty"`
	List        []Duration          `json:"list,omitempty"`
}

// ExponentialBackoff has pauses that grow by a factor from First to Max.
type ExponentialBackoff struct {
	First  Duration  `json:"first"`
	Factor float64   `json:"factor,omitempty"`
	Max    *Duration `json:"max,omitempty"`
}

// A TaskOption sets fields of a task.
type TaskOption interface {
	ScheduleOption
	applyTask(*TaskFields)
}

// A ScheduleOption is a [TaskOption], or a condition of the call that schedules the task:
// [IfMatch], [IfNew], [IdempotencyKey], [Minimal].
type ScheduleOption interface {
	applySchedule(*scheduling)
}

// scheduling is a call that schedules one task.
type scheduling struct {
	task           TaskFields
	ifMatch        int64
	ifNew          bool
	idempotencyKey string
	minimal        bool
}

type taskOption func(*TaskFields)

func (o taskOption) applyTask(f *TaskFields)     { o(f) }
func (o taskOption) applySchedule(s *scheduling) { o(&s.task) }

type callOption func(*scheduling)

func (o callOption) applySchedule(s *scheduling) { o(s) }

// NewTask makes a task for [Client.ScheduleMany]. The broker names the task if the key is empty.
func NewTask(key string, options ...TaskOption) TaskFields {
	fields := TaskFields{Key: key}
	for _, option := range options {
		option.applyTask(&fields)
	}
	return fields
}

// A When is a due time: an option for scheduling and for touching.
type When struct {
	in, within *Duration
	at         *time.Time
}

func (w When) applySchedule(s *scheduling) { w.applyTask(&s.task) }

func (w When) applyTask(f *TaskFields) {
	switch {
	case w.in != nil:
		f.In = w.in
	case w.at != nil:
		f.At = w.at
	case w.within != nil:
		f.Within = w.within
	}
}

func (w When) applyTouch(t *touch) { t.In, t.At, t.Within = w.in, w.at, w.within }

func (w When) applyTouchMany(t *touchMany) { w.applyTouch(&t.touch) }

// In fires once after the delay.
func In(delay time.Duration) When { return When{in: durationOf(delay)} }

// At fires once at the time.
func At(at time.Time) When { return When{at: &at} }

// Within makes a watch: it fires when it was not touched for the duration.
func Within(silence time.Duration) When { return When{within: durationOf(silence)} }

// Every fires at a fixed interval.
func Every(interval time.Duration) TaskOption {
	return taskOption(func(f *TaskFields) { f.Every = durationOf(interval) })
}

// Cron fires by a cron expression, read in the time zone: an IANA name, or "" for UTC.
func Cron(expression, timezone string) TaskOption {
	return taskOption(func(f *TaskFields) { f.Cron, f.Timezone = expression, timezone })
}

// ClockChanges says what a cron task does when the clocks change. See [DST].
func ClockChanges(gap, overlap string) TaskOption {
	return taskOption(func(f *TaskFields) { f.DST = &DST{Gap: gap, Overlap: overlap} })
}

// StartsAt is the first time at which a series may fire.
func StartsAt(at time.Time) TaskOption {
	return taskOption(func(f *TaskFields) { f.StartsAt = &at })
}

// EndsAt is the last time at which a series may fire.
func EndsAt(at time.Time) TaskOption { return taskOption(func(f *TaskFields) { f.EndsAt = &at }) }

// Count is how often a series fires.
func Count(fires int) TaskOption { return taskOption(func(f *TaskFields) { f.Count = fires }) }

// Misfire says what happens to missed fires of a series.
func Misfire(policy string) TaskOption { return taskOption(func(f *TaskFields) { f.Misfire = policy }) }

// Overlap says what happens to a fire while the previous one has not ended.
func Overlap(policy string) TaskOption { return taskOption(func(f *TaskFields) { f.Overlap = policy }) }

// Jitter makes each fire of a series later by a random part of the duration.
func Jitter(most time.Duration) TaskOption {
	return taskOption(func(f *TaskFields) { f.Jitter = durationOf(most) })
}

// PostponeMax is the longest that touches can postpone a fire of a watch in total.
func PostponeMax(most time.Duration) TaskOption {
	return taskOption(func(f *TaskFields) { f.PostponeMax = durationOf(most) })
}

// OnReturn makes another fire when a watch that has fired is touched.
func OnReturn() TaskOption {
	return taskOption(func(f *TaskFields) {
		yes := true
		f.OnReturn = &yes
	})
}

// ToQueue delivers to the workers of a queue.
func ToQueue(name string) TaskOption { return To(QueueTarget(name)) }

// ToURL delivers to a webhook.
func ToURL(url string) TaskOption { return To(URLTarget(url)) }

// ToStatement runs a statement of a connection. Parameters that params does not have are taken from
// the payload; it may be nil.
func ToStatement(connection, statement string, params map[string]any) TaskOption {
	return To(StatementTarget(connection, statement, params))
}

// ToMethod calls a unary gRPC method, like /shop.Orders/Cancel. The payload is the message.
func ToMethod(url, method string) TaskOption {
	return To(Target{GRPC: &GRPCTarget{URL: url, Method: method}})
}

// To delivers to the target.
func To(target Target) TaskOption { return taskOption(func(f *TaskFields) { f.Target = &target }) }

// JSON makes the payload from a value.
func JSON(value any) TaskOption {
	return taskOption(func(f *TaskFields) {
		text, err := json.Marshal(value)
		if err != nil {
			f.err = errors.Join(f.err, err)
		}
		f.Payload = text
	})
}

// Bytes makes a payload of any content type.
func Bytes(payload []byte, contentType string) TaskOption {
	return taskOption(func(f *TaskFields) { f.PayloadBase64, f.ContentType = payload, contentType })
}

// Guaranteed chooses how often a fire may be received. The default is [AtLeastOnce].
func Guaranteed(guarantee Guarantee) TaskOption {
	return taskOption(func(f *TaskFields) { f.Guarantee = guarantee })
}

// Attempts is how often a fire is attempted before it is a dead letter.
func Attempts(most int) TaskOption {
	return taskOption(func(f *TaskFields) { f.retry().AttemptsMax = most })
}

// FixedBackoff makes the same pause before each further attempt.
func FixedBackoff(pause time.Duration) TaskOption {
	return taskOption(func(f *TaskFields) { f.retry().Backoff = &Backoff{Fixed: durationOf(pause)} })
}

// ExponentialPauses makes pauses that grow by the factor from first to most.
func ExponentialPauses(first time.Duration, factor float64, most time.Duration) TaskOption {
	return taskOption(func(f *TaskFields) {
		growing := &ExponentialBackoff{First: Duration(first), Factor: factor, Max: durationOf(most)}
		f.retry().Backoff = &Backoff{Exponential: growing}
	})
}

// ListedPauses makes these pauses, one after the other.
func ListedPauses(pauses ...time.Duration) TaskOption {
	return taskOption(func(f *TaskFields) {
		list := make([]Duration, len(pauses))
		for i, pause := range pauses {
			list[i] = Duration(pause)
		}
		f.retry().Backoff = &Backoff{List: list}
	})
}

// RetryJitter is the share of each pause that is random, from 0 to 1.
func RetryJitter(share float64) TaskOption {
	return taskOption(func(f *TaskFields) { f.retry().Jitter = &share })
}

// Timeout is how long one attempt may take.
func Timeout(most time.Duration) TaskOption {
	return taskOption(func(f *TaskFields) { f.Timeout = durationOf(most) })
}

// ExpiresAfter is how long after its time an attempt still makes sense.
func ExpiresAfter(age time.Duration) TaskOption {
	return taskOption(func(f *TaskFields) { f.ExpiresAfter = durationOf(age) })
}

// CreatePaused creates the task paused: it does not fire until it is resumed.
func CreatePaused() TaskOption { return taskOption(func(f *TaskFields) { f.Paused = true }) }

// OnDone receives the record of each fire that succeeded.
func OnDone(target Target) TaskOption { return taskOption(func(f *TaskFields) { f.OnDone = &target }) }

// OnDead receives the record of each fire that became a dead letter.
func OnDead(target Target) TaskOption { return taskOption(func(f *TaskFields) { f.OnDead = &target }) }

// Key is the key of a task that [Client.ScheduleNew] creates.
func Key(key string) TaskOption { return taskOption(func(f *TaskFields) { f.Key = key }) }

// Fields sets all fields of the task at once; later options change single ones.
func Fields(fields TaskFields) TaskOption { return taskOption(func(f *TaskFields) { *f = fields }) }

// TaskJSON is a whole task as JSON text, sent as it is. Other task options have no effect beside
// it. It is for tasks that come from elsewhere, and for fields that this package does not know.
func TaskJSON(text []byte) TaskOption {
	return taskOption(func(f *TaskFields) {
		if !json.Valid(text) {
			f.err = errors.Join(f.err, errors.New("punctual: the text of TaskJSON is not JSON"))
		}
		f.raw = text
	})
}

// A LabelOption is a label: one that a task gets, or one to list by.
type LabelOption struct{ name, value string }

// Label gives a task a label. In a list it selects the tasks that have it.
func Label(name, value string) LabelOption { return LabelOption{name, value} }

func (l LabelOption) applySchedule(s *scheduling) { l.applyTask(&s.task) }

func (l LabelOption) applyTask(f *TaskFields) {
	labels := make(map[string]string, len(f.Labels)+1)
	for name, value := range f.Labels {
		labels[name] = value
	}
	labels[l.name] = l.value
	f.Labels = labels
}

// IfMatch replaces only this version of the task; otherwise the call fails with
// [ErrVersionMismatch].
func IfMatch(version int64) ScheduleOption {
	return callOption(func(s *scheduling) { s.ifMatch = version })
}

// IfNew creates only: if the key is taken the call fails with [ErrExists].
func IfNew() ScheduleOption { return callOption(func(s *scheduling) { s.ifNew = true }) }

// IdempotencyKey makes [Client.ScheduleNew] create once, however often it is called with the key
// within a day. Without it the client chooses one for its own repetitions.
func IdempotencyKey(key string) ScheduleOption {
	return callOption(func(s *scheduling) { s.idempotencyKey = key })
}

// Minimal asks for the id, the due time and the version of the task only, which is faster.
func Minimal() MinimalOption { return MinimalOption{} }

// MinimalOption is the option that [Minimal] returns, for scheduling and for touching.
type MinimalOption struct{}

func (MinimalOption) applySchedule(s *scheduling) { s.minimal = true }
func (MinimalOption) applyTouch(t *touch)         { t.minimal = true }

func (f *TaskFields) retry() *RetryPolicy {
	if f.Retry == nil {
		f.Retry = &RetryPolicy{}
	}
	return f.Retry
}

func durationOf(d time.Duration) *Duration {
	wire := Duration(d)
	return &wire
}
