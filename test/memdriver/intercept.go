package memdriver

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// reply is how a call ends.
type reply struct {
	answer any
	err    error
}

// task is what is done for a call.
type task struct {
	seq  int
	name string // held in busy until the task has ended
	rule Rule
	work func() (any, error)
}

// intercept records every call and lets it go through its rule:
//
//	begin ─▶ busy? Aborted ─▶ Delay, Hold ─▶ work ─▶ Lag ─▶ Code, Edit ─▶ end
//	           the caller may leave at any time; the line above goes on without it
func (d *Driver) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, work grpc.UnaryHandler) (any, error) {
	d.mu.Lock()
	life := d.life
	call := d.begin(ctx, path.Base(info.FullMethod), request)
	name, free := d.occupy(call.Seq, request)
	rule := Rule{}
	if free {
		rule = d.ruleFor(call)
	}
	d.mu.Unlock()

	done := reply{err: status.Errorf(codes.Aborted, "an operation for the %s is running", name)}
	if free {
		done = d.perform(ctx, life, task{seq: call.Seq, name: name, rule: rule, work: func() (any, error) {
			if rule.Skip {
				return emptyAnswer(info.FullMethod)
			}
			// The work belongs to the backend: it does not end with the caller.
			return work(context.WithoutCancel(ctx), request)
		}})
	}
	d.end(call.Seq, done)
	return done.answer, done.err
}

// emptyAnswer makes an empty message of the type that the method answers with.
func emptyAnswer(fullMethod string) (any, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(fullMethod, "/"), "/", "."))
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	method, ok := descriptor.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, status.Errorf(codes.Internal, "%s is no method", name)
	}
	answer, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return answer.New().Interface(), nil
}

// begin writes the call into the record; the lock is held.
func (d *Driver) begin(ctx context.Context, method string, request any) Call {
	d.seq++
	call := Call{Seq: d.seq, Method: method, Key: keyOf(request), Begin: time.Now()}
	call.Metadata, _ = metadata.FromIncomingContext(ctx)
	if message, ok := request.(proto.Message); ok {
		call.Request, call.SecretKeys = withoutSecrets(message)
	}
	if call.Key != "" {
		call.Overlaps = slices.Clone(d.running[call.Key])
		d.running[call.Key] = append(d.running[call.Key], call.Seq)
	}
	d.calls = append(d.calls, call)
	d.notify()
	return call
}

// ruleFor finds the call's rule and counts it; the zero Rule if there is none. The lock is held.
func (d *Driver) ruleFor(call Call) Rule {
	for _, rule := range d.rules {
		if rule.Fresh && d.store.volumeNamed(call.Key) != nil {
			continue
		}
		if rule.matches(call) {
			rule.left--
			return rule.Rule
		}
	}
	return Rule{}
}

// occupy takes the name that the request works on, unless another call has it. Requests that only read
// have no name. The lock is held.
func (d *Driver) occupy(seq int, request any) (string, bool) {
	name := d.store.workName(request)
	if name == "" {
		return "", true
	}
	if _, taken := d.busy[name]; taken {
		return name, false
	}
	d.busy[name] = seq
	return name, true
}

// perform takes the call through its rule and returns when it is answered or its caller has left.
func (d *Driver) perform(ctx, life context.Context, t task) reply {
	answered := make(chan reply, 1)
	d.workers.Go(func() {
		done := d.follow(ctx, life, t)
		// First free, then answered: who has the answer may use the name again at once.
		d.mu.Lock()
		delete(d.busy, t.name)
		d.notify()
		d.mu.Unlock()
		answered <- done
	})
	select {
	case done := <-answered:
		return done
	case <-ctx.Done():
		return reply{err: status.FromContextError(ctx.Err()).Err()}
	}
}

func (d *Driver) follow(ctx, life context.Context, t task) reply {
	rule := t.rule
	died := reply{err: status.Error(codes.Unavailable, "the driver is going away")}
	if rule.Hang {
		select {
		case <-ctx.Done():
			return reply{err: status.FromContextError(ctx.Err()).Err()}
		case <-life.Done():
			return died
		}
	}
	if !pause(life, rule.Delay, rule.Hold) {
		return died
	}
	var done reply
	if rule.Code == codes.OK || rule.Late {
		done.answer, done.err = t.work()
		d.worked(t.seq, done.err == nil && !rule.Skip)
	}
	if !pause(life, rule.Lag, nil) {
		return died
	}
	if rule.Code != codes.OK {
		return reply{err: status.Error(rule.Code, cmp.Or(rule.Message, "told to fail"))}
	}
	if message, ok := done.answer.(proto.Message); ok && done.err == nil && rule.Edit != nil {
		done.answer = rule.Edit(proto.Clone(message))
	}
	return done
}

// pause waits for d and hold; false when the driver has been stopped.
func pause(life context.Context, d time.Duration, hold <-chan struct{}) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-life.Done():
			return false
		}
	}
	if hold != nil {
		select {
		case <-hold:
		case <-life.Done():
			return false
		}
	}
	return life.Err() == nil
}

func (d *Driver) worked(seq int, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if call := d.call(seq); call != nil {
		call.Worked = done
	}
	d.notify()
}

func (d *Driver) end(seq int, done reply) {
	d.observing.Lock()
	defer d.observing.Unlock()
	d.mu.Lock()
	call := d.call(seq)
	call.End = time.Now()
	if done.err != nil {
		call.Code, call.Message = status.Code(done.err), status.Convert(done.err).Message()
	} else if message, ok := done.answer.(proto.Message); ok {
		call.Answer = message
	}
	if call.Key != "" {
		d.running[call.Key] = slices.DeleteFunc(d.running[call.Key], func(other int) bool { return other == seq })
		if len(d.running[call.Key]) == 0 {
			delete(d.running, call.Key)
		}
	}
	ended, observe := *call, d.cfg.Observe
	d.notify()
	d.mu.Unlock()
	if observe != nil {
		observe(ended)
	}
}

// call finds a call by its number, nil when it was forgotten; the lock is held.
func (d *Driver) call(seq int) *Call {
	at, found := slices.BinarySearchFunc(d.calls, seq, func(call Call, seq int) int { return cmp.Compare(call.Seq, seq) })
	if !found {
		return nil
	}
	return &d.calls[at]
}
