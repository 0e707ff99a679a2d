package chain

import (
	"context"
	"errors"
	"testing"
)

// halves is a broker that holds halves of messages, and hands what is committed to the broker in memory.
type halves struct {
	e    *env
	held []Event
}

func (e *env) halves() *halves {
	h := &halves{e: e}
	e.Halves, e.Memory = h, &Memory{}
	return h
}

// PublishAround holds the event until its fate is known. A crash in transact leaves it.
func (h *halves) PublishAround(ctx context.Context, ev Event, transact func(context.Context) Fate) error {
	h.held = append(h.held, ev)
	crashes := len(h.e.crash)
	fate := transact(ctx)
	if len(h.e.crash) == crashes {
		h.end(ev, fate)
	}
	return nil
}

func (h *halves) end(ev Event, fate Fate) {
	if fate == FateUnknown {
		return
	}
	h.held = h.held[:len(h.held)-1]
	if fate == FateCommitted {
		h.e.broker.log = append(h.e.broker.log, ev)
	}
}

// ask asks another process for the fate of all that is held.
func (h *halves) ask(t *testing.T, check Checker) {
	t.Helper()
	h.e.Memory = &Memory{}
	for range len(h.held) {
		ev := h.held[len(h.held)-1]
		fate, err := check(t.Context(), h.e.Service, ev)
		must(t, err)
		h.end(ev, fate)
	}
}

// Whoever is asked before the order has committed settles that it never will.
func TestCheckBeforeCommit(t *testing.T) {
	e := newEnv(t)
	e.halves()
	reached, release := e.holdAt(BeforeOrderCommit)
	placed := start(func() error { return PlaceOrderBetween(t.Context(), e.Service, first) })
	wait(t, reached)
	asked := start(func() error {
		fate, err := CheckInTable(t.Context(), e.Service, first)
		if err == nil && fate != FateCommitted {
			err = errors.New("the fate is " + string(fate) + ", of an order that was written first")
		}
		return err
	})
	release()
	must(t, placed())
	must(t, asked())

	second := event(2, 2, 1)
	if fate, err := CheckInTable(t.Context(), e.Service, second); err != nil || fate != FateRolledBack {
		t.Fatal(fate, err)
	}
	if err := PlaceOrderBetween(t.Context(), e.Service, second); err == nil {
		t.Error("an order was written after it was said to be rolled back")
	}
	if n := scan[int](t, e, "SELECT count(*) FROM orders"); n != 1 {
		t.Errorf("%d orders", n)
	}
}
