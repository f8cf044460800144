package trace

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Endpoint is a collector that takes spans in OTLP over gRPC.
type Endpoint struct {
	// Target is host:port.
	Target string
	// TLS says that the connection is encrypted and that the collector must prove its name.
	TLS bool
}

// ParseEndpoint reads host:port or http://host:port, both without encryption, or https://host:port.
func ParseEndpoint(text string) (Endpoint, error) {
	target, isURL := strings.CutPrefix(text, "http://")
	if !isURL {
		target, isURL = strings.CutPrefix(text, "https://")
	}
	if isURL {
		target = strings.TrimSuffix(target, "/")
	}
	host, port, err := net.SplitHostPort(target)
	number, nerr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || strings.ContainsAny(host, "/?#@ ") || nerr != nil || number == 0 {
		return Endpoint{}, fmt.Errorf("must be host:port, http://host:port or https://host:port, is %q", text)
	}
	return Endpoint{Target: target, TLS: strings.HasPrefix(text, "https:")}, nil
}

// ParseHeaders reads key=value,key=value, the values encoded as in URLs: what OTEL_EXPORTER_OTLP_HEADERS holds. The
// values are secrets as a rule, so that the error shows none of them. Empty text means none.
func ParseHeaders(text string) (map[string]string, error) {
	headers := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, found := strings.Cut(pair, "=")
		key = strings.ToLower(strings.TrimSpace(key))
		if !found || key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			return nil, errors.New("must be key=value,key=value, with nothing but letters, digits, -, _ and . in keys")
		}
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("has a value for %q that is not encoded as in URLs", key)
		}
		headers[key] = value
	}
	if len(headers) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	return headers, nil
}

// ParseRatio returns which part of the traces a sampler keeps, 0 to 1; name and argument are what OTEL_TRACES_SAMPLER
// and OTEL_TRACES_SAMPLER_ARG hold. No name means all. Our traces have no parents, so that the samplers that follow
// these do what they do without.
func ParseRatio(name, argument string) (float64, error) {
	switch strings.TrimPrefix(strings.ToLower(strings.TrimSpace(name)), "parentbased_") {
	case "", "always_on":
		return 1, nil
	case "always_off":
		return 0, nil
	case "traceidratio":
		if argument == "" {
			return 1, nil
		}
		ratio, err := strconv.ParseFloat(strings.TrimSpace(argument), 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return 0, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1, is %q", argument)
		}
		return ratio, nil
	}
	return 0, fmt.Errorf("OTEL_TRACES_SAMPLER must be always_on, always_off or traceidratio, alone or after parentbased_, is %q", name)
}
