package trace

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseEndpoint(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Endpoint{
		"otel-collector.monitoring:4317":  {Target: "otel-collector.monitoring:4317"},
		"http://localhost:4317":           {Target: "localhost:4317"},
		"http://localhost:4317/":          {Target: "localhost:4317"},
		"https://traces.example.com:443":  {Target: "traces.example.com:443", TLS: true},
		"https://traces.example.com:443/": {Target: "traces.example.com:443", TLS: true},
		"[::1]:4317":                      {Target: "[::1]:4317"},
		"http://[fd00::1]:4317":           {Target: "[fd00::1]:4317"},
	} {
		got, err := ParseEndpoint(text)
		if err != nil || got != want {
			t.Errorf("ParseEndpoint(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "localhost", ":4317", "localhost:", "localhost:0", "localhost:65536", "localhost:grpc", "localhost:4317/", "localhost:4317/v1/traces",
		"http://localhost", "http://localhost:4317/v1/traces", "http://localhost:4317//", "https://me:hush@traces.example.com:443", "https://",
		"unix:///run/otel.sock", "grpc://localhost:4317", "dns:///localhost:4317", "local host:4317", "::1:4317", "https://http://localhost:1", "localhost:-1",
	} {
		if got, err := ParseEndpoint(text); err == nil || !strings.HasPrefix(err.Error(), "must be host:port") {
			t.Errorf("ParseEndpoint(%q) = %v, %v, want an error", text, got, err)
		}
	}
}

func TestParseHeaders(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string]string{
		"":                                 nil,
		" , ":                              nil,
		"api-key=hush":                     {"api-key": "hush"},
		"Authorization=Basic%20aHVzaA==":   {"authorization": "Basic aHVzaA=="},
		" a = 1 , b_2.c=x=y,":              {"a": "1", "b_2.c": "x=y"},
		"empty=":                           {"empty": ""},
		"plus=a+b":                         {"plus": "a+b"},
		"same=1,same=2":                    {"same": "2"},
		"x-tenant=%E2%82%AC,x-other=plain": {"x-tenant": "€", "x-other": "plain"},
	} {
		got, err := ParseHeaders(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("ParseHeaders(%q): %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{"hush", "=hush", "a b=hush", "a=%zzhush", "ok=1,hush", "é=hush"} {
		if got, err := ParseHeaders(text); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("ParseHeaders(%q) = %v, %v, want an error that shows no value", text, got, err)
		}
	}
}

func TestParseRatio(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, argument string
		want           float64
	}{
		{"", "", 1},
		{"", "0.5", 1},
		{"always_on", "0.5", 1},
		{"parentbased_always_on", "", 1},
		{"always_off", "", 0},
		{"parentbased_always_off", "1", 0},
		{"traceidratio", "", 1},
		{"traceidratio", "0.25", 0.25},
		{"parentbased_traceidratio", " 0.1 ", 0.1},
		{" TraceIDRatio ", "0", 0},
	} {
		if got, err := ParseRatio(tc.name, tc.argument); err != nil || got != tc.want {
			t.Errorf("ParseRatio(%q, %q) = %v, %v, want %v", tc.name, tc.argument, got, err, tc.want)
		}
	}
	for _, tc := range [][2]string{
		{"jaeger_remote", ""}, {"xray", ""}, {"on", ""}, {"traceidratio", "2"}, {"traceidratio", "-0.1"}, {"traceidratio", "some"}, {"traceidratio", "NaN"},
	} {
		if got, err := ParseRatio(tc[0], tc[1]); err == nil || !strings.HasPrefix(err.Error(), "OTEL_TRACES_SAMPLER") {
			t.Errorf("ParseRatio(%q, %q) = %v, %v, want an error that names the variable", tc[0], tc[1], got, err)
		}
	}
}
