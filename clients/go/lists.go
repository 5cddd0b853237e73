package punctual

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A Filter selects what a list shows. A filter that a list does not have is an error of the broker.
type Filter interface{ applyFilter(url.Values) }

type filter func(url.Values)

func (f filter) applyFilter(query url.Values) { f(query) }

func (l LabelOption) applyFilter(query url.Values) { query.Set("label", l.name+":"+l.value) }

// InState selects tasks in a state.
func InState(state State) Filter { return queryFilter("state", string(state)) }

// OfKind selects tasks with a kind of schedule.
func OfKind(kind Kind) Filter { return queryFilter("kind", string(kind)) }

// KeyPrefix selects tasks, or fires of tasks, whose key begins with the prefix.
func KeyPrefix(prefix string) Filter { return queryFilter("key_prefix", prefix) }

// From selects tasks that are due, or fires that ended, at this time or later.
func From(at time.Time) Filter { return queryFilter("from", instantText(at)) }

// Until selects tasks that are due, or fires that ended, before this time.
func Until(at time.Time) Filter { return queryFilter("to", instantText(at)) }

// EndedAs selects fires by how they ended.
func EndedAs(end End) Filter { return queryFilter("end", string(end)) }

// ForReason selects dead letters by the reason of their group.
func ForReason(reason string) Filter { return queryFilter("reason", reason) }

// ForTarget selects dead letters by the target of their group.
func ForTarget(target string) Filter { return queryFilter("target", target) }

// PageSize is how many entries the broker sends at once, from 1 to 1,000.
func PageSize(entries int) Filter { return queryFilter("limit", strconv.Itoa(entries)) }

// AfterCursor begins behind a page: Cursor is the Next of the page before.
func AfterCursor(cursor string) Filter { return queryFilter("cursor", cursor) }

func queryFilter(name, value string) Filter {
	return filter(func(query url.Values) { query.Set(name, value) })
}

func queryOf(filters []Filter) url.Values {
	query := url.Values{}
	for _, filter := range filters {
		filter.applyFilter(query)
	}
	return query
}

func instantText(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// TaskPage is one page of a list of tasks. Next is empty on the last page.
type TaskPage struct {
	Tasks []Task `json:"tasks"`
	Next  string `json:"next,omitempty"`
}

// ListPage lists one page of tasks in the order of their due time.
func (c *Client) ListPage(ctx context.Context, filters ...Filter) (*TaskPage, error) {
	return decode[TaskPage](ctx, c, get(c.path("tasks"), queryOf(filters)))
}

// List lists tasks in the order of their due time. It reads further pages as needed. After an
// error the iteration ends.
func (c *Client) List(ctx context.Context, filters ...Filter) iter.Seq2[Task, error] {
	return pages(filters, func(filters []Filter) ([]Task, string, error) {
		page, err := c.ListPage(ctx, filters...)
		if err != nil {
			return nil, "", err
		}
		return page.Tasks, page.Next, nil
	})
}

// pages iterates over the entries of all pages.
func pages[T any](filters []Filter, read func([]Filter) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		cursor := []Filter{}
		for {
			entries, next, err := read(append(append([]Filter{}, filters...), cursor...))
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, entry := range entries {
				if !yield(entry, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			cursor = []Filter{AfterCursor(next)}
		}
	}
}

// End is how a fire ended.
type End string

// The ends of a fire.
const (
	EndDone      End = "done"
	EndDead      End = "dead"
	EndCancelled End = "cancelled"
	EndReplaced  End = "replaced"
	EndSkipped   End = "skipped"
)

// Occasion is why there is a fire.
type Occasion string

// The occasions of a fire.
const (
	OccasionDue    Occasion = "due"
	OccasionManual Occasion = "manual"
	OccasionReturn Occasion = "return"
)

// FireRecord is a fire in the history. End is empty for the current fire.
type FireRecord struct {
	FireID   string          `json:"fire_id"`
	Task     string          `json:"task"`
	Key      string          `json:"key,omitempty"`
	Occasion Occasion        `json:"occasion"`
	FireAt   time.Time       `json:"fire_at"`
	FiredAt  *time.Time      `json:"fired_at,omitempty"`
	EndedAt  *time.Time      `json:"ended_at,omitempty"`
	LagMS    *int64          `json:"lag_ms,omitempty"`
	End      End             `json:"end,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Skipped  *SkippedFires   `json:"skipped,omitempty"`
	Attempts []Attempt       `json:"attempts"`
}

// SkippedFires are fires of a series that were not made: how many, until when, and why.
type SkippedFires struct {
	Fires  int64     `json:"fires"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
}

// Attempt is one attempt of a fire.
type Attempt struct {
	Attempt    int       `json:"attempt"`
	At         time.Time `json:"at"`
	DurationMS int64     `json:"duration_ms"`
	// Outcome is acked, failed, refused or expired.
	Outcome string    `json:"outcome"`
	Reason  string    `json:"reason,omitempty"`
	RetryIn *Duration `json:"retry_in,omitempty"`
	Status  int       `json:"status,omitempty"`
	Answer  *Answer   `json:"answer,omitempty"`
}

// Answer is the beginning of what a webhook responded: text, or bytes that are not UTF-8.
type Answer struct {
	ContentType string  `json:"content_type,omitempty"`
	Text        *string `json:"text,omitempty"`
	Base64      []byte  `json:"base64,omitempty"`
	Truncated   bool    `json:"truncated"`
}

// FirePage is one page of fires. Next is empty on the last page.
type FirePage struct {
	Fires []FireRecord `json:"fires"`
	Next  string       `json:"next,omitempty"`
}

// FiresPage lists one page of the fires of all tasks that have ended, newest first.
func (c *Client) FiresPage(ctx context.Context, filters ...Filter) (*FirePage, error) {
	return decode[FirePage](ctx, c, get(c.path("fires"), queryOf(filters)))
}

// Fires lists the fires of all tasks that have ended, newest first.
func (c *Client) Fires(ctx context.Context, filters ...Filter) iter.Seq2[FireRecord, error] {
	return pages(filters, func(filters []Filter) ([]FireRecord, string, error) {
		page, err := c.FiresPage(ctx, filters...)
		if err != nil {
			return nil, "", err
		}
		return page.Fires, page.Next, nil
	})
}

// History lists the latest fires of one task that have ended, newest first. [PageSize] says how
// many.
func (c *Client) History(ctx context.Context, keyOrID string, filters ...Filter) ([]FireRecord, error) {
	path, err := c.taskPath(keyOrID, "fires")
	if err != nil {
		return nil, err
	}
	page, err := decode[FirePage](ctx, c, get(path, queryOf(filters)))
	if err != nil {
		return nil, err
	}
	return page.Fires, nil
}

// DeadLetter is a fire that used up its attempts, was refused, or expired.
type DeadLetter struct {
	FireID string `json:"fire_id"`
	// Reason is exhausted, refused, expired or unknown.
	Reason   string    `json:"reason"`
	DiedAt   time.Time `json:"died_at"`
	Attempts []Attempt `json:"attempts"`
	Task     Task      `json:"task"`
}

// DeadPage is one page of dead letters. Next is empty on the last page.
type DeadPage struct {
	Dead []DeadLetter `json:"dead"`
	Next string       `json:"next,omitempty"`
}

// DeadPage lists one page of dead letters.
func (c *Client) DeadPage(ctx context.Context, filters ...Filter) (*DeadPage, error) {
	return decode[DeadPage](ctx, c, get(c.path("dead"), queryOf(filters)))
}

// Dead lists dead letters.
func (c *Client) Dead(ctx context.Context, filters ...Filter) iter.Seq2[DeadLetter, error] {
	return pages(filters, func(filters []Filter) ([]DeadLetter, string, error) {
		page, err := c.DeadPage(ctx, filters...)
		if err != nil {
			return nil, "", err
		}
		return page.Dead, page.Next, nil
	})
}

// DeadGroup counts the dead letters with the same reason and target.
type DeadGroup struct {
	Reason  string    `json:"reason"`
	Target  string    `json:"target"`
	Count   int64     `json:"count"`
	FirstAt time.Time `json:"first_at"`
	LastAt  time.Time `json:"last_at"`
	Example string    `json:"example,omitempty"`
}

// DeadGroups are the largest groups; More counts the letters of the others.
type DeadGroups struct {
	Groups []DeadGroup `json:"groups"`
	More   int64       `json:"more"`
}

// DeadGroups counts dead letters by reason and target.
func (c *Client) DeadGroups(ctx context.Context) (*DeadGroups, error) {
	return decode[DeadGroups](ctx, c, get(c.path("dead", "groups"), nil))
}

// DeadSelection selects dead letters by [DeadIDs], [AllDead] or [DeadWhere].
type DeadSelection struct {
	IDs   []string         `json:"ids,omitempty"`
	All   bool             `json:"all,omitempty"`
	Where *DeadGroupFilter `json:"where,omitempty"`
}

// DeadGroupFilter selects a group of dead letters.
type DeadGroupFilter struct {
	Reason string `json:"reason,omitempty"`
	Target string `json:"target,omitempty"`
}

// DeadIDs selects dead letters by their fire ids.
func DeadIDs(ids ...string) DeadSelection { return DeadSelection{IDs: ids} }

// AllDead selects all dead letters.
func AllDead() DeadSelection { return DeadSelection{All: true} }

// DeadWhere selects a group of dead letters; an empty reason or target is any.
func DeadWhere(reason, target string) DeadSelection {
	return DeadSelection{Where: &DeadGroupFilter{Reason: reason, Target: target}}
}

// LetterProblem says why a dead letter was not redriven or deleted.
type LetterProblem struct {
	ID      string  `json:"id"`
	Problem Problem `json:"problem"`
}

// Redriven is the answer of [Client.Redrive]. More says that further calls are needed.
type Redriven struct {
	Redriven int64           `json:"redriven"`
	Problems []LetterProblem `json:"problems"`
	More     bool            `json:"more"`
}

// Redrive delivers dead letters again.
func (c *Client) Redrive(ctx context.Context, selection DeadSelection) (*Redriven, error) {
	request, err := jsonCall(http.MethodPost, c.path("dead", "redrive"), selection)
	if err != nil {
		return nil, err
	}
	return decode[Redriven](ctx, c, request)
}

// DeletedLetters is the answer of [Client.DeleteDeadMany]. More says that further calls are needed.
type DeletedLetters struct {
	Deleted  int64           `json:"deleted"`
	Problems []LetterProblem `json:"problems"`
	More     bool            `json:"more"`
}

// DeleteDeadMany deletes dead letters.
func (c *Client) DeleteDeadMany(ctx context.Context, selection DeadSelection) (*DeletedLetters, error) {
	request, err := jsonCall(http.MethodPost, c.path("dead", "delete"), selection)
	if err != nil {
		return nil, err
	}
	return decode[DeletedLetters](ctx, c, request)
}

// deleted is the answer to the deletion of one thing.
type deleted struct {
	Result string `json:"result"`
}

// DeleteDead deletes one dead letter.
func (c *Client) DeleteDead(ctx context.Context, fireID string) error {
	_, err := decode[deleted](ctx, c, call{method: http.MethodDelete, path: c.path("dead", fireID)})
	return err
}

// get makes a call that reads.
func get(path string, query url.Values) call {
	return call{method: http.MethodGet, path: path, query: query, repeatable: true}
}
