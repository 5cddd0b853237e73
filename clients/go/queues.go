package punctual

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// Delivery is a fire that a worker has leased. It must be settled before its lease ends.
type Delivery struct {
	Token    string    `json:"token"`
	FireID   string    `json:"fire_id"`
	Task     string    `json:"task"`
	Key      string    `json:"key,omitempty"`
	Occasion Occasion  `json:"occasion"`
	Attempt  int       `json:"attempt"`
	Version  int64     `json:"version"`
	FireAt   time.Time `json:"fire_at"`
	FiredAt  time.Time `json:"fired_at"`
	LagMS    int64     `json:"lag_ms"`
	Lease    Duration  `json:"lease"`
	// Payload is JSON; of a task with another content type it is empty and PayloadBase64 has it.
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 []byte          `json:"payload_base64,omitempty"`
	ContentType   string          `json:"content_type,omitempty"`
	// CallbackOf is the fire whose end this delivery reports.
	CallbackOf string `json:"callback_of,omitempty"`
}

// LeaseRequest says what to lease. Zero values are the defaults of the broker.
type LeaseRequest struct {
	// Max is how many deliveries, up to 1,000; the default is 1.
	Max int
	// Wait is how long the broker waits for the first one, up to a minute.
	Wait time.Duration
	// Lease is how long the deliveries are held; the default is the timeout of each task.
	Lease time.Duration
	// Worker is the name that is shown for the worker.
	Worker string
}

// leaseBody is the body of a request.
type leaseBody struct {
	Max    int       `json:"max,omitempty"`
	Wait   *Duration `json:"wait,omitempty"`
	Lease  *Duration `json:"lease,omitempty"`
	Worker string    `json:"worker,omitempty"`
}

// deliveries is the answer of a call.
type deliveries struct {
	Deliveries []Delivery `json:"deliveries"`
}

// Lease takes deliveries from a queue. A [Worker] does so by itself.
func (c *Client) Lease(ctx context.Context, queue string, what LeaseRequest) ([]Delivery, error) {
	request, err := c.leaseCall(queue, what)
	if err != nil {
		return nil, err
	}
	got, err := decode[deliveries](ctx, c, request)
	if err != nil {
		return nil, err
	}
	return got.Deliveries, nil
}

func (c *Client) leaseCall(queue string, what LeaseRequest) (call, error) {
	body := leaseBody{Max: what.Max, Wait: durationOf(what.Wait), Worker: what.Worker}
	if what.Lease != 0 {
		body.Lease = durationOf(what.Lease)
	}
	request, err := jsonCall(http.MethodPost, c.path("queues", queue, "lease"), body)
	request.wait = what.Wait
	return request, err
}

// AckEntry acknowledges a delivery, with a result of at most 16 KiB that the history keeps.
type AckEntry struct {
	Token  string          `json:"token"`
	Result json.RawMessage `json:"result,omitempty"`
}

// ackBody is the body of a request.
type ackBody struct {
	Tokens []string   `json:"tokens,omitempty"`
	Acks   []AckEntry `json:"acks,omitempty"`
}

// AckResult is what became of an ack: acked, stale, or rejected with a problem.
type AckResult struct {
	Token   string   `json:"token"`
	Result  string   `json:"result"`
	Problem *Problem `json:"problem,omitempty"`
}

// acked is the answer of a call.
type acked struct {
	Results []AckResult `json:"results"`
}

// The results of settling a delivery. Stale says that its attempt was over; nothing was changed.
const (
	ResultAcked    = "acked"
	ResultRejected = "rejected"
	ResultFailed   = "failed"
	ResultRefused  = "refused"
	ResultExtended = "extended"
	ResultStale    = "stale"
)

// Ack acknowledges deliveries.
func (c *Client) Ack(ctx context.Context, queue string, tokens ...string) ([]AckResult, error) {
	return c.ack(ctx, queue, "", ackBody{Tokens: tokens})
}

// AckResults acknowledges deliveries with results.
func (c *Client) AckResults(ctx context.Context, queue string, acks ...AckEntry) ([]AckResult, error) {
	return c.ack(ctx, queue, "", ackBody{Acks: acks})
}

func (c *Client) ack(ctx context.Context, queue, broker string, body ackBody) ([]AckResult, error) {
	request, err := jsonCall(http.MethodPost, c.path("queues", queue, "ack"), body)
	if err != nil {
		return nil, err
	}
	request.repeatable, request.broker = true, broker
	got, err := decode[acked](ctx, c, request)
	if err != nil {
		return nil, err
	}
	return got.Results, nil
}

// failBody is the body of a request.
type failBody struct {
	Token   string    `json:"token"`
	Reason  string    `json:"reason,omitempty"`
	RetryIn *Duration `json:"retry_in,omitempty"`
}

// refuseBody is the body of a request.
type refuseBody struct {
	Token  string `json:"token"`
	Reason string `json:"reason,omitempty"`
}

// extendBody is the body of a request.
type extendBody struct {
	Token string   `json:"token"`
	Lease Duration `json:"lease"`
}

// settled is the answer of a call.
type settled struct {
	Result string `json:"result"`
}

// Fail says that an attempt failed. It is repeated after retryIn, or after the task's own pause if
// that is [OwnBackoff]. The result is [ResultFailed] or [ResultStale].
func (c *Client) Fail(ctx context.Context, queue, token, reason string, retryIn time.Duration) (string, error) {
	body := failBody{Token: token, Reason: reason}
	if retryIn >= 0 {
		body.RetryIn = durationOf(retryIn)
	}
	return c.settle(ctx, queue, "fail", "", body)
}

// Refuse says that no attempt makes sense: the fire becomes a dead letter. The result is
// [ResultRefused] or [ResultStale].
func (c *Client) Refuse(ctx context.Context, queue, token, reason string) (string, error) {
	return c.settle(ctx, queue, "refuse", "", refuseBody{Token: token, Reason: reason})
}

// Extend makes the lease end that much later from now. The result is [ResultExtended] or
// [ResultStale].
func (c *Client) Extend(ctx context.Context, queue, token string, lease time.Duration) (string, error) {
	return c.settle(ctx, queue, "extend", "", extendBody{Token: token, Lease: Duration(lease)})
}

func (c *Client) settle(ctx context.Context, queue, verb, broker string, body any) (string, error) {
	request, err := jsonCall(http.MethodPost, c.path("queues", queue, verb), body)
	if err != nil {
		return "", err
	}
	request.repeatable, request.broker = true, broker
	got, err := decode[settled](ctx, c, request)
	if err != nil {
		return "", err
	}
	return got.Result, nil
}
