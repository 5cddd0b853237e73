package punctual

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Problem is the problem document (RFC 9457) that a broker answers instead of success. Every
// error of a call that a broker has answered is a *Problem; use [errors.As] to read it, or
// [errors.Is] with one of the Err values of this package.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Field is the field of the request that is to blame, if it is one.
	Field string `json:"field,omitempty"`
	// Existing is the task that has the key already ([ErrExists]).
	Existing *Task `json:"existing,omitempty"`
	// Reasons are why a broker is not ready ([ErrNotReady]).
	Reasons []string `json:"reasons,omitempty"`

	// RetryAfter is the pause that the broker asked for; 0 if it asked for none.
	RetryAfter time.Duration `json:"-"`
	// Raw is the document as it was received.
	Raw json.RawMessage `json:"-"`
}

// Error has the type of the problem and its detail.
func (p *Problem) Error() string {
	name := strings.TrimPrefix(p.Type, "urn:punctual:")
	return fmt.Sprintf("punctual: %s (%s, status %d)", p.Detail, name, p.Status)
}

// Is reports whether target is the Err value of the problem's type.
func (p *Problem) Is(target error) bool {
	kind, ok := target.(problemType)
	return ok && p.Type == string(kind)
}

// problemType is an error that equals every problem of its type under [errors.Is].
type problemType string

func (t problemType) Error() string {
	return "punctual: " + strings.TrimPrefix(string(t), "urn:punctual:")
}

// The types of problems, for [errors.Is].
var (
	// ErrLost says that it is not known whether the call was carried out: the broker answered
	// urn:punctual:lost, or the connection broke after the request was sent. A call with a key
	// or an idempotency key can be repeated without harm.
	ErrLost error = problemType("urn:punctual:lost")

	ErrNotFound             error = problemType("urn:punctual:not-found")
	ErrTaskNotFound         error = problemType("urn:punctual:task-not-found")
	ErrDeadLetterNotFound   error = problemType("urn:punctual:dead-letter-not-found")
	ErrAlarmNotFound        error = problemType("urn:punctual:alarm-not-found")
	ErrConnectionNotFound   error = problemType("urn:punctual:connection-not-found")
	ErrRuleNotFound         error = problemType("urn:punctual:rule-not-found")
	ErrOperationNotFound    error = problemType("urn:punctual:operation-not-found")
	ErrUnauthenticated      error = problemType("urn:punctual:unauthenticated")
	ErrForbidden            error = problemType("urn:punctual:forbidden")
	ErrCrossOrigin          error = problemType("urn:punctual:cross-origin")
	ErrHostNotAllowed       error = problemType("urn:punctual:host-not-allowed")
	ErrMethodNotAllowed     error = problemType("urn:punctual:method-not-allowed")
	ErrInvalidRequest       error = problemType("urn:punctual:invalid-request")
	ErrInvalidBody          error = problemType("urn:punctual:invalid-body")
	ErrInvalidField         error = problemType("urn:punctual:invalid-field")
	ErrUnsupportedMediaType error = problemType("urn:punctual:unsupported-media-type")
	ErrTooLarge             error = problemType("urn:punctual:too-large")
	ErrTooMany              error = problemType("urn:punctual:too-many")
	ErrTooSlow              error = problemType("urn:punctual:too-slow")
	ErrShareUsedUp          error = problemType("urn:punctual:share-used-up")
	ErrExists               error = problemType("urn:punctual:exists")
	ErrVersionMismatch      error = problemType("urn:punctual:version-mismatch")
	ErrIdempotencyConflict  error = problemType("urn:punctual:idempotency-conflict")
	ErrFiring               error = problemType("urn:punctual:firing")
	ErrPaused               error = problemType("urn:punctual:paused")
	ErrNotAWatch            error = problemType("urn:punctual:not-a-watch")
	ErrNotTouchable         error = problemType("urn:punctual:not-touchable")
	ErrNeverFires           error = problemType("urn:punctual:never-fires")
	ErrBusy                 error = problemType("urn:punctual:busy")
	ErrFull                 error = problemType("urn:punctual:full")
	ErrStore                error = problemType("urn:punctual:store")
	ErrDamaged              error = problemType("urn:punctual:damaged")
	ErrNoOwner              error = problemType("urn:punctual:no-owner")
	ErrStopping             error = problemType("urn:punctual:stopping")
	ErrNotReady             error = problemType("urn:punctual:not-ready")
)

// ErrLeaseLost is the cause of a handler's context that was cancelled because the broker has
// given the delivery to another worker, or has ended its attempt.
var ErrLeaseLost = errors.New("punctual: the lease of the delivery is over")

// ConnectionError is a call that no broker has answered. It is [ErrLost] if the request may have
// reached a broker.
type ConnectionError struct {
	Broker string
	// Sent says that the request, or a part of it, may have reached the broker.
	Sent bool
	Err  error
}

// Error names the broker and the error of the connection.
func (e *ConnectionError) Error() string {
	return fmt.Sprintf("punctual: no answer from broker %s: %v", e.Broker, e.Err)
}

// Unwrap returns the error of the connection.
func (e *ConnectionError) Unwrap() error { return e.Err }

// Is reports [ErrLost] for a request that may have reached the broker.
func (e *ConnectionError) Is(target error) bool { return e.Sent && target == ErrLost }

// newProblem reads a problem document. An answer of a proxy that is none becomes a problem with
// the status and the beginning of the body.
func newProblem(status int, header http.Header, body []byte) *Problem {
	problem := &Problem{}
	if err := json.Unmarshal(body, problem); err != nil || problem.Type == "" {
		const shown = 200
		problem = &Problem{Type: "about:blank", Title: http.StatusText(status), Detail: string(body[:min(len(body), shown)])}
	}
	if problem.Status == 0 {
		problem.Status = status
	}
	problem.Raw = body
	problem.RetryAfter = retryAfter(header.Get("Retry-After"), time.Now())
	return problem
}

// retryAfter reads a Retry-After header: seconds, or an HTTP date.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}
