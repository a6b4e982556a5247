// The model service of TARSy for benchmarks and tests: waits, then answers with text that ends in a score.
//
// With -chat it is an OpenAI-compatible endpoint instead, so that both services have the same judge.
//
// With -investigates it carries out investigations: it calls the first tool that it is offered, and concludes after
// the result. It answers a conversation that holds the text of -fails with an error of the provider.
//
// It is built inside a checkout of TARSy, whose messages it imports; see docs/benchmarks.md.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	llmv1 "github.com/codeready-toolchain/tarsy/proto"
)

type answers = grpc.ServerStreamingServer[llmv1.GenerateResponse]

type model struct {
	llmv1.UnimplementedLLMServiceServer
	latency      time.Duration
	answer       string
	investigates bool
	fails        string
}

func (m *model) Generate(request *llmv1.GenerateRequest, stream answers) error {
	time.Sleep(m.latency)
	if m.fails != "" && holds(request, m.fails) {
		failure := &llmv1.ErrorInfo{Message: "the provider refuses", Code: "invalid_request"}
		return stream.Send(&llmv1.GenerateResponse{Content: &llmv1.GenerateResponse_Error{Error: failure}, IsFinal: true})
	}
	if m.investigates && len(request.Tools) > 0 && !hasResult(request) {
		call := &llmv1.ToolCallDelta{CallId: "call-1", Name: request.Tools[0].Name, Arguments: `{"name": "checkout-7"}`}
		content := &llmv1.GenerateResponse_ToolCall{ToolCall: call}
		if err := stream.Send(&llmv1.GenerateResponse{Content: content}); err != nil {
			return err
		}
	} else {
		content := &llmv1.GenerateResponse_Text{Text: &llmv1.TextDelta{Content: m.answer}}
		if err := stream.Send(&llmv1.GenerateResponse{Content: content}); err != nil {
			return err
		}
	}
	usage := &llmv1.UsageInfo{InputTokens: 30000, OutputTokens: 600, TotalTokens: 30600}
	return stream.Send(&llmv1.GenerateResponse{Content: &llmv1.GenerateResponse_Usage{Usage: usage}, IsFinal: true})
}

func holds(request *llmv1.GenerateRequest, text string) bool {
	for _, message := range request.Messages {
		if strings.Contains(message.Content, text) {
			return true
		}
	}
	return false
}

func hasResult(request *llmv1.GenerateRequest) bool {
	for _, message := range request.Messages {
		if message.Role == "tool" {
			return true
		}
	}
	return false
}

// chat answers POST /v1/chat/completions as Generate does; GET /calls says how often.
func (m *model) chat() http.Handler {
	var calls atomic.Int64
	usage := map[string]int{"prompt_tokens": 30000, "completion_tokens": 600, "total_tokens": 30600}
	message := map[string]string{"role": "assistant", "content": m.answer}
	choice := map[string]any{"index": 0, "message": message, "finish_reason": "stop"}
	completion := map[string]any{
		"id": "stand-in", "object": "chat.completion", "created": 0, "model": "stand-in", "usage": usage, "choices": []any{choice},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(response http.ResponseWriter, request *http.Request) {
		// Not decoded: for 100 KB that takes 1 ms of this machine, and a judge works elsewhere.
		body := make([]byte, max(request.ContentLength, 0))
		_, err := io.ReadFull(request.Body, body)
		if err != nil || !bytes.Contains(body, []byte(`"messages":[{`)) {
			http.Error(response, "expected messages", http.StatusBadRequest)
			return
		}
		calls.Add(1)
		time.Sleep(m.latency)
		response.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(response).Encode(completion)
	})
	mux.HandleFunc("GET /calls", func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(response, calls.Load())
	})
	return mux
}

func main() {
	latency := flag.Duration("latency", 0, "wait before each answer")
	size := flag.Int("answer-bytes", 2500, "about the size of an answer")
	investigates := flag.Bool("investigates", false, "call a tool before the answer, where there are tools")
	fails := flag.String("fails", "", "answer conversations with this text with an error")
	chat := flag.Bool("chat", false, "serve chat completions over HTTP in place of TARSy's protocol")
	flag.Parse()
	sentence := "The agent compared the pods before it concluded. "
	breakdown := "Logical Flow: 18/25\nConsistency: 18/25\nTool Relevance: 18/25\nSynthesis Quality: 18/25"
	answer := strings.Repeat(sentence, 1+*size/len(sentence)) + "\n\nOutcome: correct\n\n" + breakdown + "\n\n72"
	if *investigates {
		answer = sentence // an agent that states a total would seem to steer the judge
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	stand := &model{latency: *latency, answer: answer, investigates: *investigates, fails: *fails}
	if *chat {
		fmt.Printf("http://%s/v1\n", listener.Addr())
		log.Fatal(http.Serve(listener, stand.chat()))
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	llmv1.RegisterLLMServiceServer(server, stand)
	fmt.Println(listener.Addr())
	log.Fatal(server.Serve(listener))
}
