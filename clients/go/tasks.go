package punctual

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// batchTasksMax and batchBytesMax bound one request of ScheduleMany; the broker allows 10,000
	// tasks and 64 MiB. Batches of this size are as fast as larger ones.
	batchTasksMax = 2000
	batchBytesMax = 4 << 20
	// namesMax is how many keys or ids the broker takes in one request.
	namesMax = 10_000
)

// Schedule creates the task of the key, or replaces it.
func (c *Client) Schedule(ctx context.Context, key string, options ...ScheduleOption) (*Task, error) {
	path, err := c.taskPath(key)
	if err != nil {
		return nil, err
	}
	chosen := schedulingOf(options)
	if chosen.idempotencyKey != "" {
		return nil, errors.New("punctual: IdempotencyKey is for ScheduleNew; Schedule is idempotent by its key")
	}
	chosen.task.Key = ""
	body, err := chosen.task.encode()
	if err != nil {
		return nil, err
	}
	header := chosen.header()
	return decode[Task](ctx, c, call{
		method: http.MethodPut, path: path, body: body, header: header,
		repeatable: !chosen.ifNew && chosen.ifMatch == 0,
	})
}

// ScheduleNew creates a task that is named by the broker, or by [Key]. It sends an idempotency
// key, so that a repetition after a broken connection creates no second task.
func (c *Client) ScheduleNew(ctx context.Context, options ...ScheduleOption) (*Task, error) {
	chosen := schedulingOf(options)
	if chosen.ifNew || chosen.ifMatch != 0 {
		return nil, errors.New("punctual: IfNew and IfMatch need a key; use Schedule")
	}
	body, err := chosen.task.encode()
	if err != nil {
		return nil, err
	}
	if chosen.idempotencyKey == "" {
		chosen.idempotencyKey = newIdempotencyKey()
	}
	header := chosen.header()
	return decode[Task](ctx, c, call{
		method: http.MethodPost, path: c.path("tasks"), body: body, header: header, repeatable: true,
	})
}

func schedulingOf(options []ScheduleOption) *scheduling {
	chosen := &scheduling{}
	for _, option := range options {
		option.applySchedule(chosen)
	}
	return chosen
}

func (s *scheduling) header() http.Header {
	header := http.Header{}
	if s.ifMatch != 0 {
		header.Set("If-Match", `"`+strconv.FormatInt(s.ifMatch, 10)+`"`)
	}
	if s.ifNew {
		header.Set("If-None-Match", "*")
	}
	if s.idempotencyKey != "" {
		header.Set("Idempotency-Key", s.idempotencyKey)
	}
	if s.minimal {
		header.Set("Prefer", "return=minimal")
	}
	return header
}

func newIdempotencyKey() string {
	var random [16]byte
	// crypto/rand does not fail on the platforms that Go supports.
	_, _ = rand.Read(random[:])
	return hex.EncodeToString(random[:])
}

// ScheduleResult is what became of one task of [Client.ScheduleMany].
type ScheduleResult struct {
	raw json.RawMessage
	err error
}

// Err is nil if the task was created or replaced; otherwise it says why not.
func (r ScheduleResult) Err() error { return r.err }

// Task returns the task as the broker shows it. It is decoded by this call.
func (r ScheduleResult) Task() (*Task, error) {
	if r.err != nil {
		return nil, r.err
	}
	task := &Task{}
	if err := json.Unmarshal(r.raw, task); err != nil {
		return nil, err
	}
	return task, nil
}

// ScheduleMany creates or replaces many tasks, in requests of some thousands. There is one result
// for each task, in order; a bad task does not stop the others. The error is the first one that
// concerns a whole request; the results of its tasks have it, too.
func (c *Client) ScheduleMany(ctx context.Context, tasks []TaskFields) ([]ScheduleResult, error) {
	results := make([]ScheduleResult, len(tasks))
	var failed error
	for start := 0; start < len(tasks); {
		var lines bytes.Buffer
		var sent []int
		keyed := true
		end := start
		for ; end < len(tasks) && len(sent) < batchTasksMax && lines.Len() < batchBytesMax; end++ {
			text, err := tasks[end].encode()
			if err != nil {
				results[end].err = err
				continue
			}
			// A line must not be broken by the white space of a text from elsewhere.
			if bytes.IndexByte(text, '\n') >= 0 {
				var compact bytes.Buffer
				_ = json.Compact(&compact, text)
				text = compact.Bytes()
			}
			lines.Write(text)
			lines.WriteByte('\n')
			sent = append(sent, end)
			keyed = keyed && tasks[end].raw == nil && tasks[end].Key != ""
		}
		if err := c.scheduleBatch(ctx, lines.Bytes(), keyed, sent, results); err != nil {
			for _, index := range sent {
				results[index].err = err
			}
			if failed == nil {
				failed = err
			}
		}
		start = end
	}
	return results, failed
}

// scheduleBatch sends the tasks in one request. Tasks that all have keys are replaced by a
// repetition, as by Schedule; only others need an idempotency key, which makes the broker work
// about three times as long.
func (c *Client) scheduleBatch(ctx context.Context, lines []byte, keyed bool, sent []int, results []ScheduleResult) error {
	if len(sent) == 0 {
		return nil
	}
	header := http.Header{}
	if !keyed {
		header.Set("Idempotency-Key", newIdempotencyKey())
	}
	got, err := c.do(ctx, call{
		method: http.MethodPost, path: c.path("tasks"), body: lines, contentType: "application/x-ndjson",
		header: header, repeatable: true,
	})
	if err != nil {
		return err
	}
	entries, err := splitResults(got.body)
	if err == nil && len(entries) != len(sent) {
		err = errors.New("the number of results is not the number of tasks")
	}
	if err != nil {
		return &AnswerError{Path: c.path("tasks"), Err: err}
	}
	for i, entry := range entries {
		if entry.problem {
			results[sent[i]].err = newProblem(0, nil, entry.text)
		} else {
			results[sent[i]].raw = entry.text
		}
	}
	return nil
}

// getting is a call of [Client.Get].
type getting struct{ query url.Values }

// A GetOption is an option of [Client.Get].
type GetOption func(*getting)

// AwaitChange waits until the task has another version than the given one, or has ended, for 30
// seconds at most. The same version in the answer says that no caller has changed the task.
func AwaitChange(version int64, wait time.Duration) GetOption {
	return func(g *getting) {
		g.query.Set("after_version", strconv.FormatInt(version, 10))
		g.query.Set("wait", Duration(wait).String())
	}
}

// Get shows a task. A key names the task that has it now, or else the one that had it last, as
// long as its history is kept.
func (c *Client) Get(ctx context.Context, keyOrID string, options ...GetOption) (*Task, error) {
	chosen := getting{url.Values{}}
	for _, option := range options {
		option(&chosen)
	}
	path, err := c.taskPath(keyOrID)
	if err != nil {
		return nil, err
	}
	wait, _ := ParseDuration(chosen.query.Get("wait"))
	return decode[Task](ctx, c, call{
		method: http.MethodGet, path: path, query: chosen.query, wait: wait, repeatable: true,
	})
}

// CancelResult is what became of a task that was cancelled: [Cancelled], [Firing],
// [AlreadyFired] or [NotFound].
type CancelResult interface{ cancelResult() }

// Cancelled says that the task never fires, whatever fails afterwards.
type Cancelled struct{}

// Firing says that an attempt is in flight and cannot be called back.
type Firing struct{ Attempt int }

// AlreadyFired says that the task has fired before it was cancelled.
type AlreadyFired struct{ At time.Time }

// NotFound says that there is no such task, or that its history is past retention.
type NotFound struct {
	// Problem is what the broker answered; nil in the results of [Client.CancelMany].
	Problem *Problem
}

func (Cancelled) cancelResult()    {}
func (Firing) cancelResult()       {}
func (AlreadyFired) cancelResult() {}
func (NotFound) cancelResult()     {}

// cancelAnswer is a result of a cancel on the wire.
type cancelAnswer struct {
	Key     string     `json:"key,omitempty"`
	ID      string     `json:"id,omitempty"`
	Result  string     `json:"result,omitempty"`
	Attempt int        `json:"attempt,omitempty"`
	FiredAt *time.Time `json:"fired_at,omitempty"`
	Problem *Problem   `json:"problem,omitempty"`
}

func (a *cancelAnswer) result() (CancelResult, error) {
	switch a.Result {
	case "cancelled":
		return Cancelled{}, nil
	case "firing":
		return Firing{a.Attempt}, nil
	case "already_fired":
		fired := AlreadyFired{}
		if a.FiredAt != nil {
			fired.At = *a.FiredAt
		}
		return fired, nil
	case "not_found":
		return NotFound{}, nil
	}
	if a.Problem != nil {
		return nil, a.Problem
	}
	return nil, errors.New("punctual: unknown result of a cancel: " + strconv.Quote(a.Result))
}

// Cancel ends a task. The result says whether it can still fire.
func (c *Client) Cancel(ctx context.Context, keyOrID string) (CancelResult, error) {
	path, err := c.taskPath(keyOrID)
	if err != nil {
		return nil, err
	}
	got, err := decode[cancelAnswer](ctx, c, call{method: http.MethodDelete, path: path, repeatable: true})
	var problem *Problem
	if errors.Is(err, ErrTaskNotFound) && errors.As(err, &problem) {
		return NotFound{problem}, nil
	}
	if err != nil {
		return nil, err
	}
	return got.result()
}

// CancelManyResult is what became of one task of [Client.CancelMany].
type CancelManyResult struct {
	// Key or ID is what the caller named the task by.
	Key, ID string
	Result  CancelResult
	Err     error
}

// cancelMany is the body of a request.
type cancelMany struct {
	Keys []string `json:"keys,omitempty"`
	IDs  []string `json:"ids,omitempty"`
}

// cancelManyAnswer is the answer.
type cancelManyAnswer struct {
	Results []cancelAnswer `json:"results"`
}

// CancelMany cancels tasks by their keys. There is one result each, in order.
func (c *Client) CancelMany(ctx context.Context, keys []string) ([]CancelManyResult, error) {
	return c.cancelMany(ctx, keys, func(part []string) cancelMany { return cancelMany{Keys: part} })
}

// CancelManyByID cancels tasks by their ids. There is one result each, in order.
func (c *Client) CancelManyByID(ctx context.Context, ids []string) ([]CancelManyResult, error) {
	return c.cancelMany(ctx, ids, func(part []string) cancelMany { return cancelMany{IDs: part} })
}

func (c *Client) cancelMany(ctx context.Context, names []string, body func([]string) cancelMany) ([]CancelManyResult, error) {
	var results []CancelManyResult
	for part := range chunks(names) {
		request, err := jsonCall(http.MethodPost, c.path("cancel"), body(part))
		if err != nil {
			return results, err
		}
		request.repeatable = true
		got, err := decode[cancelManyAnswer](ctx, c, request)
		if err != nil {
			return results, err
		}
		for i := range got.Results {
			one := &got.Results[i]
			result, err := one.result()
			results = append(results, CancelManyResult{Key: one.Key, ID: one.ID, Result: result, Err: err})
		}
	}
	return results, nil
}

// chunks cuts names into parts that the broker takes in one request.
func chunks(names []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(names) > 0 {
			size := min(len(names), namesMax)
			if !yield(names[:size]) {
				return
			}
			names = names[size:]
		}
	}
}

// touch is the body of a request.
type touch struct {
	In     *Duration  `json:"in,omitempty"`
	At     *time.Time `json:"at,omitempty"`
	Within *Duration  `json:"within,omitempty"`

	minimal bool
}

// touchMany is the body of a request.
type touchMany struct {
	Keys []string `json:"keys"`
	touch
	Create json.RawMessage `json:"create,omitempty"`

	err error
}

// A TouchOption is a due time ([In], [At] or [Within]) or [Minimal].
type TouchOption interface{ applyTouch(*touch) }

// A TouchManyOption is a due time ([In], [At] or [Within]) or [Create].
type TouchManyOption interface{ applyTouchMany(*touchMany) }

type createOption []TaskOption

func (o createOption) applyTouchMany(t *touchMany) {
	task := NewTask("", o...)
	t.Create, t.err = task.encode()
}

// Create makes the watches, or other tasks, that are missing.
func Create(options ...TaskOption) TouchManyOption { return createOption(options) }

// Touch moves a watch to now and its duration, or to the given time. A task that fires once needs
// [In] or [At].
func (c *Client) Touch(ctx context.Context, keyOrID string, options ...TouchOption) (*Task, error) {
	path, err := c.taskPath(keyOrID, "touch")
	if err != nil {
		return nil, err
	}
	var body touch
	for _, option := range options {
		option.applyTouch(&body)
	}
	request, err := jsonCall(http.MethodPost, path, body)
	if err != nil {
		return nil, err
	}
	if body.minimal {
		request.header = http.Header{"Prefer": {"return=minimal"}}
	}
	request.repeatable = true
	return decode[Task](ctx, c, request)
}

// TouchManyResult is the answer of [Client.TouchMany].
type TouchManyResult struct {
	Touched int `json:"touched"`
	Created int `json:"created"`
	// Missing are the keys that name no task; with [Create] there are none.
	Missing  []string     `json:"missing"`
	Problems []KeyProblem `json:"problems,omitempty"`
}

// KeyProblem says why a task was not touched.
type KeyProblem struct {
	Key     string  `json:"key"`
	Problem Problem `json:"problem"`
}

// TouchMany touches many tasks by their keys, and creates the missing ones with [Create].
func (c *Client) TouchMany(ctx context.Context, keys []string, options ...TouchManyOption) (*TouchManyResult, error) {
	sum := &TouchManyResult{Missing: []string{}}
	var body touchMany
	for _, option := range options {
		option.applyTouchMany(&body)
	}
	if body.err != nil {
		return nil, body.err
	}
	for part := range chunks(keys) {
		body.Keys = part
		request, err := jsonCall(http.MethodPost, c.path("touch"), body)
		if err != nil {
			return sum, err
		}
		request.repeatable = true
		got, err := decode[TouchManyResult](ctx, c, request)
		if err != nil {
			return sum, err
		}
		sum.Touched += got.Touched
		sum.Created += got.Created
		sum.Missing = append(sum.Missing, got.Missing...)
		sum.Problems = append(sum.Problems, got.Problems...)
	}
	return sum, nil
}

// Pause keeps a task from firing until it is resumed.
func (c *Client) Pause(ctx context.Context, keyOrID string) (*Task, error) {
	return c.taskAction(ctx, keyOrID, "pause", true)
}

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context, keyOrID string) (*Task, error) {
	return c.taskAction(ctx, keyOrID, "resume", true)
}

// Fire runs a task now, once, in addition to its schedule. It is not repeated if it may have been
// carried out: the error is then [ErrLost].
func (c *Client) Fire(ctx context.Context, keyOrID string) (*Task, error) {
	return c.taskAction(ctx, keyOrID, "fire", false)
}

func (c *Client) taskAction(ctx context.Context, keyOrID, verb string, repeatable bool) (*Task, error) {
	path, err := c.taskPath(keyOrID, verb)
	if err != nil {
		return nil, err
	}
	return decode[Task](ctx, c, call{method: http.MethodPost, path: path, repeatable: repeatable})
}

// splitResult is one entry of the answer to a batch.
type splitResult struct {
	text    []byte
	problem bool
}

// splitResults cuts {"results":[{…},…]} into its entries without decoding them, which is several
// times as fast. An entry with the name "type" is a problem; tasks have none.
func splitResults(body []byte) ([]splitResult, error) {
	malformed := errors.New("the answer is not a list of results")
	at := bytes.IndexByte(body, '[')
	if at < 0 || strings.TrimSpace(string(body[:min(at, 64)])) != `{"results":` {
		return splitResultsSlowly(body)
	}
	var results []splitResult
	depth, start := 0, 0
	var problem bool
	for at++; at < len(body); at++ {
		switch body[at] {
		case '"':
			end := at + 1
			for end < len(body) && body[end] != '"' {
				if body[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(body) {
				return nil, malformed
			}
			if depth == 1 && end+1 < len(body) && body[end+1] == ':' && string(body[at+1:end]) == "type" {
				problem = true
			}
			at = end
		case '{', '[':
			if depth == 0 {
				start, problem = at, false
			}
			depth++
		case '}', ']':
			if depth == 0 {
				return results, nil
			}
			depth--
			if depth == 0 {
				results = append(results, splitResult{body[start : at+1], problem})
			}
		}
	}
	return nil, malformed
}

func splitResultsSlowly(body []byte) ([]splitResult, error) {
	var answer struct {
		Results []json.RawMessage `json:"results"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	results := make([]splitResult, len(answer.Results))
	for i, text := range answer.Results {
		var entry struct {
			Type *string `json:"type"`
		}
		if err := json.Unmarshal(text, &entry); err != nil {
			return nil, err
		}
		results[i] = splitResult{text, entry.Type != nil}
	}
	return results, nil
}
