package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// The programs run and report every figure. The tests do not check the figures.

func TestKeys(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := parseKeys([]string{"-keys", "5", "-proxies", "3", "-rotations", "2"})
	if err != nil {
		t.Fatal(err)
	}
	p.pause = 20 * time.Millisecond
	r, err := runKeys(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.held) != 2*3 || len(r.shaken) != 2 || r.cold <= 0 {
		t.Errorf("%d proxies have a new key, %d handshakes a new certificate, all keys after %s", len(r.held), len(r.shaken), r.cold)
	}
	var out strings.Builder
	printKeys(&out, p, r)
	if got := strings.Count(out.String(), "(at most "); got != 4 {
		t.Errorf("%d figures have a target, want 4:\n%s", got, out.String())
	}
}

func TestHandshakes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := parseHandshakes([]string{"-rounds", "1"})
	if err != nil {
		t.Fatal(err)
	}
	p.stretch = 200 * time.Millisecond
	r, err := runHandshakes(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.ours) != 1 || len(r.byHand) != 1 || r.ours[0].made == 0 || r.byHand[0].made == 0 {
		t.Errorf("handshakes of the sidecar %+v, by hand %+v", r.ours, r.byHand)
	}
}

func TestIssuing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := parseIssuing([]string{"-rounds", "1"})
	if err != nil {
		t.Fatal(err)
	}
	p.stretch, p.clients = 200*time.Millisecond, 4
	r, err := runIssuing(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.ours) != 1 || len(r.bare) != 1 || r.ours[0].made == 0 || r.bare[0].made == 0 {
		t.Errorf("certificates of the ca %+v, bare %+v", r.ours, r.bare)
	}
	var out strings.Builder
	printIssuing(&out, p, r)
	if got := strings.Count(out.String(), times(maxIssuing)); got != 1 {
		t.Errorf("%d figures have a target, want 1:\n%s", got, out.String())
	}
}

func TestPolicies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := parsePolicies([]string{"-policies", "3", "-streams", "5", "-services", "50", "-runs", "1"})
	if err != nil {
		t.Fatal(err)
	}
	p.rounds, p.pause = 2, 20*time.Millisecond
	all, err := runPolicies(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if with, without := all[0].with, all[0].without; len(with.filter.all()) != 2*5 || len(without.filter.rounds) != 0 || len(with.route.all()) != 2*5 {
		t.Errorf("%d responses to changes of a policy, %d to those of a route, without policies %d", len(with.filter.all()), len(with.route.all()), len(without.filter.rounds))
	}
	var out strings.Builder
	printPolicies(&out, p, all)
	if got := strings.Count(out.String(), "1.20x"); got < len(policiesRows)+2 {
		t.Errorf("%d figures have a target:\n%s", got, out.String())
	}
}
