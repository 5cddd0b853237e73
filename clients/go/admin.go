package punctual

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// AlarmRule is an alarm as it is put.
type AlarmRule struct {
	When AlarmCondition `json:"when"`
	To   AlarmReceiver  `json:"to"`
	// RepeatAfter is when a raised alarm is reported again; nil is never.
	RepeatAfter *Duration `json:"repeat_after,omitempty"`
}

// AlarmCondition is what raises an alarm; exactly one field is set.
type AlarmCondition struct {
	Failures     *FailuresCondition     `json:"failures,omitempty"`
	FailureShare *FailureShareCondition `json:"failure_share,omitempty"`
	DeadLetters  *DeadLettersCondition  `json:"dead_letters,omitempty"`
	Lag          *LagCondition          `json:"lag,omitempty"`
	Overdue      *OverdueCondition      `json:"overdue,omitempty"`
	NoWorkers    *NoWorkersCondition    `json:"no_workers,omitempty"`
}

// FailuresCondition holds if Count attempts failed within the window.
type FailuresCondition struct {
	Count  int64    `json:"count"`
	Window Duration `json:"window"`
}

// FailureShareCondition holds if more than the share of at least Min attempts failed.
type FailureShareCondition struct {
	Over   float64  `json:"over"`
	Min    int64    `json:"min"`
	Window Duration `json:"window"`
}

// DeadLettersCondition holds if there are more dead letters.
type DeadLettersCondition struct {
	Over int64 `json:"over"`
}

// LagCondition holds if more than 1 % of the fires were later.
type LagCondition struct {
	P99Over Duration `json:"p99_over"`
	Window  Duration `json:"window"`
}

// OverdueCondition holds if a task is due for longer and was not sent.
type OverdueCondition struct {
	Over Duration `json:"over"`
}

// NoWorkersCondition holds if no worker of the queue was connected for as long.
type NoWorkersCondition struct {
	Queue string   `json:"queue"`
	For   Duration `json:"for"`
}

// AlarmReceiver is who gets the notices; exactly one field is set.
type AlarmReceiver struct {
	HTTP *HTTPTarget   `json:"http,omitempty"`
	Chat *ChatRobot    `json:"chat,omitempty"`
	Mail *MailReceiver `json:"mail,omitempty"`
}

// ChatRobot is the robot of a chat: slack, dingtalk, feishu or wecom.
type ChatRobot struct {
	Kind string `json:"kind"`
	URL  string `json:"url"`
	// Secret signs the notices of dingtalk and feishu. No answer contains it.
	Secret string `json:"secret,omitempty"`
}

// MailReceiver has up to 16 mail addresses.
type MailReceiver struct {
	To []string `json:"to"`
}

// Alarm is an alarm with its state.
type Alarm struct {
	Name string `json:"name"`
	AlarmRule
	// State is ok or raised.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Value is what is measured now: a number, a duration as text, or null.
	Value      json.RawMessage `json:"value"`
	Notices    int64           `json:"notices"`
	LastNotice *AlarmNotice    `json:"last_notice,omitempty"`
}

// AlarmNotice is the last notice of an alarm. Kind is raised, repeated, over or test.
type AlarmNotice struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind,omitempty"`
	AlarmTest
}

// AlarmTest is what became of a notice. State is waiting, done or failed.
type AlarmTest struct {
	State  string  `json:"state"`
	Reason string  `json:"reason,omitempty"`
	Answer *Answer `json:"answer,omitempty"`
}

// alarmList is the answer of a call.
type alarmList struct {
	Alarms []Alarm `json:"alarms"`
}

// PutAlarm creates or replaces an alarm.
func (c *Client) PutAlarm(ctx context.Context, name string, rule AlarmRule) (*Alarm, error) {
	request, err := jsonCall(http.MethodPut, c.path("alarms", name), rule)
	if err != nil {
		return nil, err
	}
	request.repeatable = true
	return decode[Alarm](ctx, c, request)
}

// Alarm shows an alarm.
func (c *Client) Alarm(ctx context.Context, name string) (*Alarm, error) {
	return decode[Alarm](ctx, c, get(c.path("alarms", name), nil))
}

// Alarms lists the alarms of the namespace by name.
func (c *Client) Alarms(ctx context.Context) ([]Alarm, error) {
	got, err := decode[alarmList](ctx, c, get(c.path("alarms"), nil))
	if err != nil {
		return nil, err
	}
	return got.Alarms, nil
}

// DeleteAlarm deletes an alarm.
func (c *Client) DeleteAlarm(ctx context.Context, name string) error {
	_, err := decode[deleted](ctx, c, call{method: http.MethodDelete, path: c.path("alarms", name)})
	return err
}

// TestAlarm sends a test notice in one attempt. A notice that fails is no error of the call.
func (c *Client) TestAlarm(ctx context.Context, name string) (*AlarmTest, error) {
	return decode[AlarmTest](ctx, c, call{method: http.MethodPost, path: c.path("alarms", name, "test")})
}

// Verb is what an operation does to tasks.
type Verb string

// The verbs of an operation.
const (
	VerbCancel Verb = "cancel"
	VerbPause  Verb = "pause"
	VerbResume Verb = "resume"
	VerbFire   Verb = "fire"
	// VerbShift makes each task due later by [Later]; VerbSpread by a part of it that is different for
	// each task, so that a herd is due evenly over that time.
	VerbShift  Verb = "shift"
	VerbSpread Verb = "spread"
)

// OperationOption is an option of [Client.StartOperation].
type OperationOption func(*newOperation)

// Later is how much later [VerbShift] and [VerbSpread] make tasks due.
func Later(by time.Duration) OperationOption {
	return func(o *newOperation) { o.Later = durationOf(by) }
}

// TaskFilter selects the tasks of an operation; the zero value is every task of the namespace.
type TaskFilter struct {
	State     State  `json:"state,omitempty"`
	Kind      Kind   `json:"kind,omitempty"`
	KeyPrefix string `json:"key_prefix,omitempty"`
	// Label is NAME:VALUE.
	Label string     `json:"label,omitempty"`
	From  *time.Time `json:"from,omitempty"`
	To    *time.Time `json:"to,omitempty"`
}

// newOperation is the body of a request.
type newOperation struct {
	Do     Verb       `json:"do"`
	Where  TaskFilter `json:"where"`
	Later  *Duration  `json:"later,omitempty"`
	DryRun bool       `json:"dry_run,omitempty"`
}

func operationFor(do Verb, where TaskFilter, options []OperationOption) newOperation {
	operation := newOperation{Do: do, Where: where}
	for _, option := range options {
		option(&operation)
	}
	return operation
}

// Operation changes all tasks that match a filter. State is running, done, stopped or failed.
type Operation struct {
	ID        string     `json:"id"`
	Do        Verb       `json:"do"`
	Where     TaskFilter `json:"where"`
	Later     *Duration  `json:"later,omitempty"`
	State     string     `json:"state"`
	Matched   int64      `json:"matched"`
	Changed   int64      `json:"changed"`
	Failed    int64      `json:"failed"`
	Problem   string     `json:"problem,omitempty"`
	By        string     `json:"by"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// oneOperation is the answer of a call.
type oneOperation struct {
	Operation Operation `json:"operation"`
}

// operationList is the answer of a call.
type operationList struct {
	Operations []Operation `json:"operations"`
}

// Action is a call of an operator that succeeded. Call is its name in the OpenAPI document.
type Action struct {
	At     time.Time `json:"at"`
	Call   string    `json:"call"`
	By     string    `json:"by"`
	Name   string    `json:"name,omitempty"`
	Detail string    `json:"detail,omitempty"`
	// Changed is how many tasks or dead letters were changed, of a call about many.
	Changed *int64 `json:"changed,omitempty"`
}

// Actions is what operators did, newest first; all since Since, if Complete: if all brokers have answered.
type Actions struct {
	Actions  []Action  `json:"actions"`
	Since    time.Time `json:"since"`
	Complete bool      `json:"complete"`
}

// Actions lists what operators did: at most limit actions, 100 if it is 0. Brokers keep the latest
// in memory, and all in their logs.
func (c *Client) Actions(ctx context.Context, limit int) (*Actions, error) {
	query := url.Values{}
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return decode[Actions](ctx, c, get(c.path("actions"), query))
}

// DryRun is what an operation would change. Matched is a lower bound unless Exact.
type DryRun struct {
	Matched int64  `json:"matched"`
	Exact   bool   `json:"exact"`
	Sample  []Task `json:"sample"`
}

// StartOperation changes all tasks that match. It ends with the broker that took it.
func (c *Client) StartOperation(ctx context.Context, do Verb, where TaskFilter, options ...OperationOption) (*Operation, error) {
	request, err := jsonCall(http.MethodPost, c.path("operations"), operationFor(do, where, options))
	if err != nil {
		return nil, err
	}
	return operationOf(decode[oneOperation](ctx, c, request))
}

// DryRunOperation counts the tasks that an operation would change, and changes nothing.
func (c *Client) DryRunOperation(ctx context.Context, do Verb, where TaskFilter, options ...OperationOption) (*DryRun, error) {
	operation := operationFor(do, where, options)
	operation.DryRun = true
	request, err := jsonCall(http.MethodPost, c.path("operations"), operation)
	if err != nil {
		return nil, err
	}
	request.repeatable = true
	return decode[DryRun](ctx, c, request)
}

// Operation shows an operation.
func (c *Client) Operation(ctx context.Context, id string) (*Operation, error) {
	return operationOf(decode[oneOperation](ctx, c, get(c.path("operations", id), nil)))
}

// Operations lists the latest operations, newest first.
func (c *Client) Operations(ctx context.Context) ([]Operation, error) {
	got, err := decode[operationList](ctx, c, get(c.path("operations"), nil))
	if err != nil {
		return nil, err
	}
	return got.Operations, nil
}

// StopOperation stops an operation after its present step.
func (c *Client) StopOperation(ctx context.Context, id string) (*Operation, error) {
	stop := call{method: http.MethodDelete, path: c.path("operations", id), repeatable: true}
	return operationOf(decode[oneOperation](ctx, c, stop))
}

func operationOf(got *oneOperation, err error) (*Operation, error) {
	if err != nil {
		return nil, err
	}
	return &got.Operation, nil
}

// Clock is the virtual clock of `punctual dev`.
type Clock struct {
	Now time.Time `json:"now"`
	// Running says that time passes by itself.
	Running bool `json:"running"`
	// Speed is how many seconds pass in one; 0 while the clock is frozen.
	Speed float64 `json:"speed,omitempty"`
}

// Advance moves the clock by a duration, or to a time.
type Advance struct {
	By time.Duration
	To time.Time
	// Wait is the real time to wait for deliveries that workers hold; 0 is the broker's default of
	// five seconds.
	Wait time.Duration
}

// NoWait as the Wait of [Advance] leaves deliveries to the workers that hold them.
const NoWait time.Duration = -1

// advanceBody is the body of a request.
type advanceBody struct {
	By   *Duration  `json:"by,omitempty"`
	To   *time.Time `json:"to,omitempty"`
	Wait *Duration  `json:"wait,omitempty"`
}

// Advanced is the answer of [Client.AdvanceClock]: the time now, how many fires there were, and
// how many of them are not settled.
type Advanced struct {
	Now       time.Time `json:"now"`
	Fires     int64     `json:"fires"`
	Unsettled int64     `json:"unsettled"`
}

// advanceWaitMax is how long the answer of an advance may take beyond its own wait.
const advanceWaitMax = 5 * time.Minute

// Clock shows the virtual clock of `punctual dev`.
func (c *Client) Clock(ctx context.Context) (*Clock, error) {
	return decode[Clock](ctx, c, get("/v1/clock", nil))
}

// AdvanceClock moves the virtual clock of `punctual dev` and delivers what becomes due.
func (c *Client) AdvanceClock(ctx context.Context, step Advance) (*Advanced, error) {
	body := advanceBody{}
	if !step.To.IsZero() {
		body.To = &step.To
	} else {
		body.By = durationOf(step.By)
	}
	if step.Wait != 0 {
		body.Wait = durationOf(max(step.Wait, 0))
	}
	request, err := jsonCall(http.MethodPost, "/v1/clock/advance", body)
	if err != nil {
		return nil, err
	}
	request.wait = max(step.Wait, 0) + advanceWaitMax
	return decode[Advanced](ctx, c, request)
}

// runBody is the body of a request.
type runBody struct {
	Speed float64 `json:"speed"`
}

// RunClock lets the virtual clock run, at a multiple of real time.
func (c *Client) RunClock(ctx context.Context, speed float64) (*Clock, error) {
	request, err := jsonCall(http.MethodPost, "/v1/clock/run", runBody{speed})
	if err != nil {
		return nil, err
	}
	return decode[Clock](ctx, c, request)
}

// FreezeClock stops the virtual clock.
func (c *Client) FreezeClock(ctx context.Context) (*Clock, error) {
	return decode[Clock](ctx, c, call{method: http.MethodPost, path: "/v1/clock/freeze"})
}
