package provision

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

func TestProtocol(t *testing.T) {
	t.Parallel()
	const timeout = 10 * time.Second
	type step struct {
		at      int // seconds
		outcome outcome.Outcome
		code    codes.Code
	}
	ok := func(at int) step { return step{at, outcome.Done, codes.OK} }
	final := func(at int) step { return step{at, outcome.Failed, codes.Internal} }
	none := func(at int) step { return step{at, outcome.Background, codes.DeadlineExceeded} }
	exists := func(at int) step { return step{at, outcome.Failed, codes.AlreadyExists} }
	for name, tc := range map[string]struct {
		steps          []step
		wantEnded      bool
		wantUnanswered bool
	}{
		"a first final error ends":                               {[]step{final(0)}, true, false},
		"a first OK ends":                                        {[]step{ok(0)}, true, false},
		"no answer stays open":                                   {[]step{none(0)}, false, true},
		"OK ends what was unanswered":                            {[]step{none(0), ok(1)}, true, false},
		"one final error does not end what was unanswered":       {[]step{none(0), final(20)}, false, true},
		"two do not":                                             {[]step{none(0), final(20), final(40)}, false, true},
		"the third ends it":                                      {[]step{none(0), final(20), final(40), final(60)}, true, false},
		"a call too soon after the one before does not count":    {[]step{none(0), final(1), final(12), final(23)}, false, true},
		"and its successor is measured from it":                  {[]step{none(0), final(1), final(12), final(23), final(34)}, true, false},
		"no answer in between begins the count anew":             {[]step{none(0), final(20), final(40), none(60), final(80), final(100)}, false, true},
		"AlreadyExists never counts":                             {[]step{none(0), exists(20), exists(40), exists(60), exists(80)}, false, true},
		"AlreadyExists does not break the row":                   {[]step{none(0), final(20), exists(40), final(60), final(80)}, true, false},
		"AlreadyExists to a first call is a final error":         {[]step{exists(0)}, true, false},
		"rescheduling counts as a final error":                   {[]step{none(0), {20, outcome.Reschedule, codes.ResourceExhausted}}, false, true},
		"rescheduling at the first call ends":                    {[]step{{0, outcome.Reschedule, codes.ResourceExhausted}}, true, false},
		"ending wipes the memory, a later final error ends anew": {[]step{none(0), ok(1), final(2)}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p protocol
			var ended bool
			epoch := time.Unix(1000, 0)
			for _, s := range tc.steps {
				p, ended = p.after(call{start: epoch.Add(time.Duration(s.at) * time.Second), outcome: s.outcome, code: s.code}, timeout)
			}
			if ended != tc.wantEnded || p.unanswered != tc.wantUnanswered {
				t.Errorf("ended %v, unanswered %v, want %v and %v", ended, p.unanswered, tc.wantEnded, tc.wantUnanswered)
			}
		})
	}
}

func TestProtocolWait(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		p    protocol
		want time.Duration
	}{
		"nothing unanswered, no wait":       {protocol{lastStart: now}, 0},
		"no call yet, no wait":              {protocol{unanswered: true}, 0},
		"just called, the whole timeout":    {protocol{unanswered: true, lastStart: now}, 10 * time.Second},
		"called a while ago, what is left":  {protocol{unanswered: true, lastStart: now.Add(-7 * time.Second)}, 3 * time.Second},
		"called long ago, nothing, not < 0": {protocol{unanswered: true, lastStart: now.Add(-time.Hour)}, 0},
	} {
		if got := tc.p.wait(now, 10*time.Second); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
